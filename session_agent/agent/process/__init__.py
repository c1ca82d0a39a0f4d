"""Processes: fork, privileges, limits, process trees and the reaper. Knows no session."""
