"""Options of the store."""

from __future__ import annotations

from oslo_config import cfg

from devicetrack import conf as registry

GROUP = 'devicetrack_database'

OPTIONS = [
    cfg.StrOpt('connection', secret=True, help="""
SQLAlchemy URL of the store. Unset means the file ``devicetrack.sqlite`` in ``[devicetrack] state_path``: one file for
each host, with full durability and nothing to operate, which is the one to recommend. ``postgresql+psycopg2://`` and
``mysql+pymysql://`` URLs name a database that hosts may share; commands over many hosts need that.
"""),
    cfg.IntOpt('max_pool_size', default=5, min=1, max=100, help="""
How many connections may be open for reading at once. Writes go through one further connection, whatever the number of
threads: what waits at the same time is committed together. Raise it when many threads read at once.
"""),
    cfg.IntOpt('busy_timeout_s', default=30, min=1, max=600, help="""
How many seconds a transaction waits for another writer's lock before it fails with nothing written.
"""),
]


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, GROUP, OPTIONS)
