"""mailroom: mail intake over any number of replicas, with PostgreSQL as the only coordinator."""
