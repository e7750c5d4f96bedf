"""What the example needs of Django's settings; yours have more."""

import os

from psycopg.conninfo import conninfo_to_dict

database = conninfo_to_dict(os.environ["DATABASE_URL"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",  # on psycopg 3 it prepares nothing, which suits pgbouncer
        "NAME": database["dbname"],
        "USER": database["user"],
        "HOST": database.get("host", ""),
        "PORT": database.get("port", ""),
        "DISABLE_SERVER_SIDE_CURSORS": True,  # iterator() would keep a cursor between the transactions of pgbouncer
    }
}
INSTALLED_APPS = ["letters"]
USE_TZ = True
