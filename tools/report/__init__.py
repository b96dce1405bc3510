"""The provenance report: one signed JSON document, and its HTML and Markdown renderings."""
