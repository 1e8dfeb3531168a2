"""The adapter for OpenStack's compute service: unmodified Nova, whose devices this library decides about.

Nova loads no driver from outside its own package, so the command ``devicetrack-nova-compute`` takes the place of
``nova-compute``: it wraps some of Nova's methods (:mod:`.tracker`, :mod:`.driver`, :mod:`.compute`) and runs Nova's own
``main``. Nova keeps CPU, memory, disks, network and its PCI tracker. Which mediated device or namespace of persistent
memory a guest gets, the record of it, and when it is wiped and removed is the claim manager's business alone.

Three rules hold for every wrapped method:

- What takes comes before Nova's ``compute_resources`` lock and reaches the locked part in a context variable; what
  gives comes after Nova has destroyed the guest. Nova's own ``destroy`` gives nothing back, since hard reboot, rebuild
  and a revert call it and go on. So a give that is lost costs capacity until the next audit, and never data.
- Without a manager it refuses; it never goes on with Nova's own choice or wipe.
- Only hosts with Nova's libvirt driver have such devices. With another driver a wrapped method does what Nova does.
"""
