"""The certificate: what was tested, what was found, how far from the target a verifier can still be."""

from specbench.exactness.certificate.certify import Certificate, certificate_of, certify
from specbench.exactness.verdict import BROKEN, LOSSLESS, NOT_LOSSLESS, NOT_REJECTED

__all__ = ["BROKEN", "LOSSLESS", "NOT_LOSSLESS", "NOT_REJECTED", "Certificate", "certificate_of", "certify"]
