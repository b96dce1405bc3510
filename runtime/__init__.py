"""forerun's training runtime: the Accelerate API over DDP and more. Importing it loads no torch."""
