"""`python -m procession_services` is `procession`."""

import sys

from procession_services.cli import main

sys.exit(main())
