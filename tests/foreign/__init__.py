"""Tests with other projects' packages and suites. `.ci/run` installs them; without a package its tests are not collected."""
