"""Text in a file that a function of a local module has opened, for the module to hold."""

import metrics
import records.writer

metrics.start("metrics.txt")
metrics.log("loss 0.5")
records.writer.Records("records.txt").add("a record")
