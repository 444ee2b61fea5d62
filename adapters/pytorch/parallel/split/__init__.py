"""Models that are split over ranks or devices."""
