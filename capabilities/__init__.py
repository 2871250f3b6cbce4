"""Your own environments: one file each, named in params.yaml as `capabilities.FILE:CLASS`."""
