"""Progress of a run as text: `progress.txt` over restarts, and a printed line of losses."""
