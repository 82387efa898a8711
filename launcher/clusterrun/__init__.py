"""clusterrun: starts one worker per GPU, on one machine or many, and looks after them."""
