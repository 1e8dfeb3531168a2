"""Options of the store."""

from __future__ import annotations

from oslo_config import cfg

from devicetrack import conf as registry

GROUP = 'devicetrack_database'

OPTIONS = [
    cfg.StrOpt('connection', secret=True, help="""
SQLAlchemy URL of the store. Unset means the file ``devicetrack.sqlite`` in ``[devicetrack] state_path``: one file for
each host, fully durable and without a server, which we recommend. ``postgresql+psycopg2://`` and ``mysql+pymysql://``
URLs name a database that hosts may share; commands over many hosts need one.
"""),
    cfg.IntOpt('max_pool_size', default=5, min=1, max=100, help="""
Maximum number of connections to the database. Claims that wait at the same time are committed together, through one of
them. Raise it when many threads read at once.
"""),
    cfg.IntOpt('busy_timeout_s', default=30, min=1, max=600, help="""
Seconds that a transaction waits for another writer's lock, and before that for a connection, if all ``max_pool_size``
are in use. After this time it fails and nothing is written.
"""),
    cfg.IntOpt('connect_timeout_s', default=10, min=2, max=600, help="""
Seconds that a server may take to accept a connection. A parameter of the same meaning in the URL of ``connection``
takes precedence.
"""),
    cfg.IntOpt('statement_timeout_s', default=30, min=1, max=3600, help="""
Seconds that a server may work on one statement or one COMMIT, without waiting for locks. If the server has not answered
``busy_timeout_s`` after this time, the connection is treated as broken: the result of a COMMIT is unknown
until the server answers again. Raise it for a server that stalls for longer, for example while it fails over.
An SQLite file has no server that could hang.
"""),
]


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, GROUP, OPTIONS)
