"""Tables, figures and pages in one style."""
