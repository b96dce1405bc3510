"""The duties of the Accelerator, one file each; all of them delegate."""
