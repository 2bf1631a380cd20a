"""The commands of the lab, which `forerun.cli.lab` lists."""
