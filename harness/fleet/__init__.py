"""Many runs on many machines, by Ray, as one report: engines x cells x seeds x kinds of machines."""
