"""Figure 2 of the paper: accuracy of the image networks under attack."""
