"""The process runner behind `holdfast up`: a whole Holdfast on one machine, in the foreground.

`__main__` reads the settings and reports what is wrong before anything starts; `datadir` prepares the data folder;
`subreaper` makes sure that no process outlives the run; `supervisor` starts, restarts and ends the processes of the
Procfile; `output` prints their lines. Development and single-machine use only: nothing here runs in a cluster.
"""
