"""The steps from one shape of the database to the next. Alembic runs them; see `evalfleet.server.migrate`."""
