"""The migrations, in the order of their `down_revision`."""
