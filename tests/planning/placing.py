"""Workers that are placed by the options of a job."""
