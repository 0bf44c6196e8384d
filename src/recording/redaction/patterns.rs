//! What secrets look like.

/// A shape of secrets.
#[derive(Debug)]
pub(super) struct Pattern {
    /// Its name in placeholders.
    pub(super) name: &'static str,
    /// Texts of which every such secret has one, in any case; whatever has none of them need not be searched.
    pub(super) signs: &'static [&'static str],
    /// The expression; where it has a group, the group is the secret.
    pub(super) regex: &'static str,
    /// What else has to be so.
    pub(super) holds: fn(&str) -> bool,
}

const fn pattern(name: &'static str, signs: &'static [&'static str], regex: &'static str) -> Pattern {
    Pattern { name, signs, regex, holds: always }
}

fn always(_: &str) -> bool {
    true
}

/// Whether it is no word of a language.
fn is_encoded(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_uppercase()) && text.contains(|c: char| c.is_ascii_digit() || c == '=')
}

/// Whether the digits have the check digit of a card's number.
fn is_card(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    let weighed = digits.iter().rev().enumerate().map(|(at, digit)| match at % 2 {
        0 => *digit,
        _ => digit * 2 / 10 + digit * 2 % 10,
    });
    weighed.sum::<u32>() % 10 == 0
}

/// The shapes that are known.
pub(super) const BUILT_IN: &[Pattern] = &[
    pattern(
        "private_key",
        &["private key"],
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\z)",
    ),
    pattern("jwt", &["eyj"], r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    pattern("api_key", &["sk-"], r"\bsk-[A-Za-z0-9_-]{16,}"),
    pattern("stripe_key", &["_live_", "_test_", "whsec_"], r"\b(?:[srw][a-z]?k?_(?:live|test)|whsec)_[A-Za-z0-9]{16,}"),
    pattern("hf_token", &["hf_"], r"\bhf_[A-Za-z0-9]{20,}"),
    pattern(
        "github_token",
        &["ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"],
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})",
    ),
    pattern("gitlab_token", &["glpat-"], r"\bglpat-[A-Za-z0-9_-]{20,}"),
    pattern(
        "provider_key",
        &[
            "gsk_",
            "xai-",
            "pplx-",
            "nvapi-",
            "r8_",
            "pypi-",
            "dckr_pat_",
            "dop_v1_",
            "shpat_",
            "lin_api_",
            "ntn_",
            "pmak-",
            "nrak-",
            "glsa_",
            "sg.",
            "dapi",
        ],
        r"\b(?:(?:gsk|r8|ntn)_[A-Za-z0-9]{20,}|(?:xai|pplx|nvapi)-[A-Za-z0-9_-]{20,}|pypi-[A-Za-z0-9_-]{32,}|dckr_pat_[A-Za-z0-9_-]{20,}|dop_v1_[a-f0-9]{32,}|shpat_[a-fA-F0-9]{32}|lin_api_[A-Za-z0-9]{20,}|(?:PMAK|NRAK)-[A-Za-z0-9-]{20,}|glsa_[A-Za-z0-9_]{20,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|dapi[a-f0-9]{32})",
    ),
    pattern("age_key", &["age-secret-key-1"], r"\bAGE-SECRET-KEY-1[A-Z0-9]{20,}"),
    pattern("bot_token", &[":aa"], r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}"),
    pattern("webhook", &["hooks.slack.com/"], r"hooks\.slack\.com/(?:services|workflows)/([A-Za-z0-9/_-]{16,})"),
    pattern("npm_token", &["npm_"], r"\bnpm_[A-Za-z0-9]{36}"),
    pattern("slack_token", &["xox"], r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    pattern("aws_key", &["akia", "asia", "abia", "acca"], r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"),
    pattern("google_key", &["aiza"], r"\bAIza[0-9A-Za-z_-]{35}"),
    Pattern { name: "basic", signs: &["basic"], regex: r"(?i)\bbasic\s+([A-Za-z0-9+/]{16,}={0,2})", holds: is_encoded },
    pattern("bearer", &["bearer"], r"(?i)\bbearer\s+([A-Za-z0-9._~+/-]{8,}=*)"),
    pattern("url_password", &["://"], r"(?i)\b[a-z][a-z0-9+.-]*://[^/\s:@\[\]]*:([^/\s@\[\]]+)@"),
    pattern(
        "assigned",
        &["="],
        r#"(?i)(?:(?:api|account|shared[_-]?access)[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?d|passphrase|(?:access|auth|refresh|session)[_-]?token)["']?\s*=\s*["']?([^\s"'&,;\[\]]{4,})"#,
    ),
    Pattern {
        name: "card",
        signs: &["3", "4", "5", "6"],
        regex: r"\b(?:4[0-9]{3}|5[1-5][0-9]{2}|6011|65[0-9]{2})(?:[ -]?[0-9]{4}){3}\b|\b3[47][0-9]{2}[ -]?[0-9]{6}[ -]?[0-9]{5}\b",
        holds: is_card,
    },
    pattern(
        "email",
        &["@"],
        r"(?i)[a-z0-9](?:[a-z0-9._%+-]*[a-z0-9_+-])?@(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}\b",
    ),
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
