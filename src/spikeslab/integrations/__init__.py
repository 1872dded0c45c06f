"""Callbacks for the libraries that people train with; each module needs the extra of its name."""
