"""Stand-ins for the packages that platforms use where they are installed: functions with the same arguments, which
check them as the packages do and compute in plain torch what their documentation says."""
