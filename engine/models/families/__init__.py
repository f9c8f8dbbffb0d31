"""Model families: each file maps a checkpoint's config and tensor names onto the one decoder."""
