"""`forerun launch`: a training script on several processes, started by hand."""
