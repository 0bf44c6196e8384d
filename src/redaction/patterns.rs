//! What secrets look like.

/// Names and regular expressions; where one has a group, the group is the secret.
pub(super) const BUILT_IN: &[(&str, &str)] = &[
    (
        "private_key",
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\z)",
    ),
    ("jwt", r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    ("api_key", r"\bsk-[A-Za-z0-9_-]{16,}"),
    ("stripe_key", r"\b[srw][a-z]?k?_(?:live|test)_[A-Za-z0-9]{16,}"),
    ("hf_token", r"\bhf_[A-Za-z0-9]{20,}"),
    ("github_token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})"),
    ("gitlab_token", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    ("npm_token", r"\bnpm_[A-Za-z0-9]{36}"),
    ("slack_token", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("aws_key", r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"),
    ("google_key", r"\bAIza[0-9A-Za-z_-]{35}"),
    ("bearer", r"(?i)\bbearer\s+([A-Za-z0-9._~+/-]{8,}=*)"),
    ("url_password", r"(?i)\b[a-z][a-z0-9+.-]*://[^/\s:@\[\]]*:([^/\s@\[\]]+)@"),
    (
        "assigned",
        r#"(?i)(?:api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?d|passphrase|(?:access|auth|refresh|session)[_-]?token)["']?\s*=\s*["']?([^\s"'&,;\[\]]{4,})"#,
    ),
    ("email", r"(?i)[a-z0-9](?:[a-z0-9._%+-]*[a-z0-9_+-])?@(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}\b"),
];

/// Names of keys and headers whose value is a secret, in lower case without `-` and `_`.
pub(super) const KEYS: &[&str] = &[
    "authorization",
    "cookie",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "privatekey",
    "pwd",
    "secret",
    "setcookie",
    "token",
];

/// What such names may also end in.
pub(super) const KEY_ENDS: &[&str] = &[
    "accesskey",
    "accesstoken",
    "apikey",
    "apisecret",
    "authorization",
    "authtoken",
    "bearertoken",
    "clientsecret",
    "hftoken",
    "idtoken",
    "password",
    "refreshtoken",
    "secretkey",
    "securitytoken",
    "sessiontoken",
];
