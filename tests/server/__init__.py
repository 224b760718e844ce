"""The server: the REST specification, real clients, bad input, crashes."""
