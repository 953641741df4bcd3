"""What the product costs against bare MLX, measured on this machine (`scripts/bench`)."""
