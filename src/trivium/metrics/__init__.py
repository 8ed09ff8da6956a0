"""What is measured: each metric declared once (`catalogue`), cheap instruments (`instruments`), the per-sequence clock (`sequence`)
and the Prometheus text (`exposition`)."""
