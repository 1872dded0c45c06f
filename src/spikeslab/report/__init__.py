"""One writer of tables and one style of figures, for every experiment."""
