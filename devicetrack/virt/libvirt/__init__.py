"""The libvirt driver: domain and node-device XML, one module for each device kind."""
