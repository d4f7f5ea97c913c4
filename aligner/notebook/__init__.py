"""What Jupyter shows of a dump and of a comparison: static HTML, no script."""
