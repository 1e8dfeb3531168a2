"""Options of the mirror of a fleet."""

from __future__ import annotations

from oslo_config import cfg

from devicetrack import conf as registry

GROUP = 'devicetrack_fleet'

OPTIONS = [
    cfg.StrOpt('connection', secret=True, help="""
SQLAlchemy URL of the mirror: one ``postgresql+psycopg2://`` or ``mysql+pymysql://`` database with a copy of the records
of all hosts. Hosts write it with ``devicetrack-manage fleet push``; the other ``fleet`` commands read it, and need no
other option. Unset means that the host has no mirror. Claims do not wait for it. Do not use the database of a store.
Use an SQLite file only for a trial on one machine.
"""),
    cfg.IntOpt('interval_s', default=60, min=1, max=86400, help="""
Seconds between two pushes of this host. Set the timer to the same interval. A host without a push for three intervals
is unknown, and its devices are not counted as free.
"""),
    cfg.IntOpt('days', default=365, min=0, help="""
Days that the mirror keeps events, whatever the hosts keep. 0 keeps them for ever. ``devicetrack-manage fleet sync``
writes it into the mirror, and all hosts follow it; no other command reads it here.
"""),
    cfg.StrOpt('group', default='', help="""
The group of this host in pictures of the fleet, for example its rack.
"""),
]


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, GROUP, OPTIONS)
