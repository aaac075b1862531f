"""Types that every loop, callback and logger shares."""

MetricDict = dict[str, int | float]
