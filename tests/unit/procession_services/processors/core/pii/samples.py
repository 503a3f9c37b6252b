"""Personal data and secrets of every local type as they stand in text, and text that nearly is some."""

PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n"
    "MIIEpAIBAAKCAQEA7v3mXk2h9wqJt0Zc1u8dPq4R\nb5yKfT0aWQd6LxN3sVgEoUj2\nAbCdEf==\n-----END RSA PRIVATE KEY-----"
)
JWT = (
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0"
    ".dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
)

PEM_SHORT = "-----BEGIN PRIVATE KEY-----\nMIIE...\n-----END PRIVATE KEY-----"

FOUND = (
    ("email", "write to john.doe+x@mail.example.co.uk.", "john.doe+x@mail.example.co.uk"),
    ("email", "<jörg@müller.de>", "jörg@müller.de"),
    ("phone", "call (555) 123-4567 now", "(555) 123-4567"),
    ("phone", "at +49 30 901820, or", "+49 30 901820"),
    ("phone", "tel: 020 7946 0958.", "020 7946 0958"),
    ("phone", "le 06 12 34 56 78 ?", "06 12 34 56 78"),
    ("phone", "ask Bo (555-123-4567)", "555-123-4567"),
    ("phone", "at _555-123-4567_ now", "555-123-4567"),
    ("credit-card", "_4111 1111 1111 1111_", "4111 1111 1111 1111"),
    ("ssn", "__123-45-6789__, ok", "123-45-6789"),
    ("iban", "_DE89 3704 0044 0532 0130 00_", "DE89 3704 0044 0532 0130 00"),
    ("phone", "call (030 901820)", "030 901820"),
    ("phone", "call (030) 901820", "(030) 901820"),
    ("phone", "me ((555) 123-4567)", "(555) 123-4567"),
    ("phone", "(+49 30 901820) or", "+49 30 901820"),
    ("phone", "Tel.+49 30 901820", "+49 30 901820"),
    ("phone", "tel.(555) 123-4567", "(555) 123-4567"),
    ("phone", "at +39 (0)2 1234 5678, or", "+39 (0)2 1234 5678"),
    ("phone", "le 06\u202f12\u202f34\u202f56\u202f78 ?", "06\u202f12\u202f34\u202f56\u202f78"),
    ("phone", "at +49\u201330\u2013901820, or", "+49\u201330\u2013901820"),
    ("email", "на иван@почта.рф.", "иван@почта.рф"),
    ("email", "to μαρία@παράδειγμα.ελ", "μαρία@παράδειγμα.ελ"),
    ("email", "<jo\u0308rg@mu\u0308ller.de>", "jo\u0308rg@mu\u0308ller.de"),
    ("credit-card", "pay 4111.1111.1111.1111, ok", "4111.1111.1111.1111"),
    ("credit-card", "pay 4111\u20131111\u20131111\u20131111", "4111\u20131111\u20131111\u20131111"),
    ("iban", "an NO93\u00a08601\u00a01117\u00a0947.", "NO93\u00a08601\u00a01117\u00a0947"),
    ("iban", "to DE89 3704 0044 0532 0130 00 now 1234", "DE89 3704 0044 0532 0130 00"),
    ("ssn", "hers is 536\u201190\u20114399.", "536\u201190\u20114399"),
    ("password", "Authorization: Basic YW5uOmh1bnRlcjI= or", "YW5uOmh1bnRlcjI="),
    ("password", "şifre: Gizli123 veya", "Gizli123"),
    ("national-id", "CPF 529.982.247\u201125", "529.982.247\u201125"),
    ("credit-card", "card 4111 1111 1111 1111.", "4111 1111 1111 1111"),
    ("credit-card", "amex 378282246310005,", "378282246310005"),
    ("ssn", "ssn 123-45-6789 ok", "123-45-6789"),
    ("iban", "an DE89 3704 0044 0532 0130 00 bitte", "DE89 3704 0044 0532 0130 00"),
    ("iban", "GB82WEST12345698765432", "GB82WEST12345698765432"),
    ("ip-address", "from 10.0.0.255.", "10.0.0.255"),
    ("ip-address", "host 2a00:1450:4001:81b::200e!", "2a00:1450:4001:81b::200e"),
    ("url", "see https://a.example/p?q=1, ok", "https://a.example/p?q=1,"),
    ("uuid", "id 550e8400-e29b-41d4-a716-446655440000.", "550e8400-e29b-41d4-a716-446655440000"),
    ("crypto-wallet", "pay 1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2 x", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2"),
    ("crypto-wallet", "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq", "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq"),
    ("crypto-wallet", "0x52908400098527886E0F7030069857D2E4169EE7", "0x52908400098527886E0F7030069857D2E4169EE7"),
    ("national-id", "CF RSSMRA85T10A562S.", "RSSMRA85T10A562S"),
    ("national-id", "DNI 12345678Z ok", "12345678Z"),
    ("password", "Authorization: Basic YW5uOmh1bnRlcjI= or", "YW5uOmh1bnRlcjI="),
    ("password", "şifre: Gizli123 veya", "Gizli123"),
    ("national-id", "CPF 529.982.247-25;", "529.982.247-25"),
    ("national-id", "BSN: 111222333.", "111222333"),
    ("national-id", "NI QQ 12 34 56 C, AB 12 34 56 C", "AB 12 34 56 C"),
    ("api-key", "key sk_live_0123456789abcdefXY ok", "sk_live_0123456789abcdefXY"),
    ("api-key", 'api_key = "0123456789abcdefghij" ok', 'api_key = "0123456789abcdefghij"'),
    ("api-key", '{"api_key": "0123456789abcdefghij"}', "0123456789abcdefghij"),
    ("password", "password: hx42kdpw it is", "hx42kdpw"),
    ("api-key", '{"x": 1, "apiSecret":"0123456789abcdefghij"}', "0123456789abcdefghij"),
    ("api-key", "client_secret: f8aK2j3nQp0zLwX1, ok", "f8aK2j3nQp0zLwX1"),
    ("api-key", "AWS AKIAIOSFODNN7EXAMPLE.", "AKIAIOSFODNN7EXAMPLE"),
    ("api-key", "Bearer abcdef0123456789abcdef01 x", "abcdef0123456789abcdef01"),
    ("api-key", "is sk-abc123def456ghi789jkl012mno, no", "sk-abc123def456ghi789jkl012mno"),
    ("private-key", "-----BEGIN PRIVATE KEY-----\nMIIE...\n-----END PRIVATE KEY-----", PEM_SHORT),
    ("jwt", f"token {JWT} x", JWT),
    ("private-key", f"key:\n{PEM}\nend", PEM),
    ("password", "password: hunter2!x ok", "hunter2!x"),
    ("password", "postgres://u:s3cr3t@db/x", "s3cr3t"),
)  # fmt: skip
"""Type, text, and what is found in it."""

NEARLY = (
    "Order 4111 1111 1111 1112 of 2024-01-15 12:30:45, version 10.2.3.4, v1.2.3.4.5",
    "ISBN 978-3-16-148410-0, std::string, abc::def, 12:30:45, file@2x.png, git@github.com:a/b",
    "00000000-0000-0000-0000-000000000000 192.0.2.1 127.0.0.1 300.1.1.1 XX12SHORT 123-45-67890",
    "password: string, api_key: your_key_here, sk_live_short, sk-this-is-just-a-css-class-name",
    "Basic understanding, basic auth: Basic dW5kZXJzdGFuZA==, a new password: http:, ok",
    "We sent 123-4567890-1234567 yesterday, made by ABCCE1234F",
    "lon -122.4194155, Kundennummer 030 1234567, Artikelnummer 0123 456 789, klantnummer 030 1234567",
    "the file begins with -----BEGIN PRIVATE KEY----- and no more",
    "a@b@c.com 1-1-1-1-1-1-1-1-1-1 httphttp:// @@@@ ==== :::: ----- eyJ.eyJ. 😀😀 \ud800 ",
)
"""Texts with nothing but near misses (the last one holds an email address in a tangle)."""
