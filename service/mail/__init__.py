"""Mail servers and the bytes of their messages; knows nothing of the database."""
