"""The commands: parse, wire, print. They decide nothing."""

import warnings

# oslo.versionedobjects loads oslo.messaging, and that eventlet, which then says on stderr of every command that it is
# deprecated. No command uses it, and whoever runs one cannot do anything about it.
warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
