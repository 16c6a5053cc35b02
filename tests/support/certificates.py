"""A certificate authority, and the certificates that it issues for 127.0.0.1."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Proof:
    """A certificate with its key, both PEM."""

    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class Authority:
    """Who signs them."""

    name: x509.Name
    key: Key
    certificate: str

    @classmethod
    def new(cls) -> Authority:
        """An authority that trusts itself."""
        key, name = ec.generate_private_key(ec.SECP256R1()), _name("test authority")
        return cls(name, key, _pem(_certificate(name, key, issuer=name, signer=key, authority=True)))

    def issue(self, common_name: str) -> Proof:
        """A certificate for 127.0.0.1, of a server or of a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(_name(common_name), key, issuer=self.name, signer=self.key, authority=False)
        plain = serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()
        return Proof(_pem(certificate), pem)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _certificate(name: x509.Name, key: Key, *, issuer: x509.Name, signer: Key, authority: bool) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(signer, hashes.SHA256())
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
