"""Program `mb-metrics` (extra `cli`): `app.py` has the options, and a file each runs `report`, `watch` and `bench`."""
