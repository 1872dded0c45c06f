"""Tables from files: columns, design matrices, the selection of variables and its page."""
