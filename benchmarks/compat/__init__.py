"""Programs that nobody wrote for this library, trained by it and by plain torch; see ``compatibility.py``."""
