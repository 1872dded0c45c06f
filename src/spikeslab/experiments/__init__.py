"""The paper's experiments and the demo, each a function from settings to tables and figures."""
