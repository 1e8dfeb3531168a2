"""Device kinds of the libvirt driver: one module each, found by entry points.

A new kind is a new module with a subclass of :class:`devicetrack.virt.libvirt.kinds.api.DeviceKind`, and an
entry point in ``devicetrack.libvirt.device_kinds``. It also needs a new field of ``domain_xml.Domain``, unless
definitions name its devices by a path of memory, the UUID of a mediated device or a PCI address.
"""
