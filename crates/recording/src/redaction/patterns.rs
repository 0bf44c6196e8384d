//! What secrets look like: a table of the public formats of tokens and keys.
//!
//! See docs/decisions/0061-account-numbers-by-their-check-digits.md and docs/decisions/0075-personal-data-is-redacted-on-demand.md.

mod numbers;
mod values;

use std::ops::Range;

use self::{
    numbers::{is_card, is_iban, is_phone, is_ssn},
    values::{has_digits, is_credible, is_encoded, is_mixed, is_no_code, is_no_port, is_random},
};

/// A shape of secrets, by which they are found.
#[derive(Debug)]
pub struct SecretShape {
    /// Its name in placeholders.
    pub kind: &'static str,
    /// What has it, for people.
    pub what: &'static str,
    /// It is personal data, which is looked for where that is requested.
    pub is_personal: bool,
    /// Texts of which every such secret has one, in any case; whatever has none of them need not be searched. None where every
    /// text is.
    pub(super) signs: &'static [&'static str],
    /// The expression; where it has a group, the group is the secret.
    pub(super) regex: &'static str,
    /// What else has to be so of a match.
    pub(super) holds: fn(&MatchedText<'_>) -> bool,
}

/// A match of an expression, in its text.
#[derive(Debug)]
pub(super) struct MatchedText<'t> {
    before: &'t str,
    text: &'t str,
    after: &'t str,
}

impl<'t> MatchedText<'t> {
    pub(super) fn of(text: &'t str, span: &Range<usize>) -> Self {
        let part = |range: Range<usize>| text.get(range).unwrap_or_default();
        Self { before: part(0..span.start), text: part(span.clone()), after: part(span.end..text.len()) }
    }
}

type Signs = &'static [&'static str];

const fn pattern(kind: &'static str, what: &'static str, signs: Signs, regex: &'static str) -> SecretShape {
    SecretShape { kind, what, is_personal: false, signs, regex, holds: |_| true }
}

impl SecretShape {
    const fn only(self, holds: fn(&MatchedText<'_>) -> bool) -> Self {
        Self { holds, ..self }
    }

    const fn personal(self) -> Self {
        Self { is_personal: true, ..self }
    }
}

/// Shapes by which secrets are found.
pub fn shapes() -> impl Iterator<Item = &'static SecretShape> {
    BUILT_IN.iter()
}

/// The shapes that are known. The names stay as they are, since placeholders in cassettes have them.
pub(super) const BUILT_IN: &[SecretShape] = &[
    pattern(
        "private_key",
        "private keys: PEM of any kind (RSA, EC, OpenSSH, PGP…), PuTTY",
        &["private key", "putty-user-key-file"],
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\z)|PuTTY-User-Key-File-[0-9]:[\s\S]*?(?:Private-MAC: [0-9a-f]+|\z)",
    ),
    pattern(
        "jwt",
        "JSON web tokens, signed, unsigned and encrypted",
        &["eyj"],
        r"\beyJ[A-Za-z0-9_-]{8,}\.(?:eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*|[A-Za-z0-9_-]*\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,})",
    ),
    pattern(
        "api_key",
        "keys that begin with `sk-`: OpenAI, Anthropic, OpenRouter, DeepSeek, Langfuse and others; OpenAI sessions",
        &["sk-", "sess-"],
        r"\bsk-[A-Za-z0-9_-]{16,}|\bsess-[A-Za-z0-9]{40}\b",
    ),
    pattern(
        "stripe_key",
        "Stripe",
        &["_live_", "_test_", "whsec_"],
        r"\b(?:[srw][a-z]?k?_(?:live|test)|whsec)_[A-Za-z0-9]{16,}",
    ),
    pattern("hf_token", "Hugging Face", &["hf_", "api_org_"], r"\b(?:hf_[A-Za-z0-9]{20,}|api_org_[A-Za-z0-9]{34})"),
    pattern(
        "github_token",
        "GitHub: personal, OAuth, user, server, refresh and fine-grained tokens",
        &["ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"],
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})",
    ),
    pattern(
        "gitlab_token",
        "GitLab: personal, OAuth, deploy, runner, job, trigger, feed, agent and other tokens",
        &["glpat-", "gloas-", "gldt-", "glrt-", "glrtr-", "glcbt-", "glptt-", "glft-", "glimt-", "glagent-", "glsoat-", "glffct-", "glwt-", "gr1348941"],
        r"\b(?:gl(?:pat|oas|dt|rtr?|cbt|ptt|ft|imt|agent|soat|ffct|wt)-[A-Za-z0-9_-]{20,}(?:\.[0-9a-z]{2}\.[0-9a-z]{9})?|GR1348941[A-Za-z0-9_-]{20,})",
    ),
    pattern(
        "provider_key",
        "Groq, Replicate, Notion, xAI, Perplexity, NVIDIA, PyPI, Docker, DigitalOcean, Shopify, Linear, Postman, New Relic, Grafana service accounts, SendGrid, Databricks",
        &[
            "gsk_", "xai-", "pplx-", "nvapi-", "r8_", "pypi-", "dckr_pat_", "dckr_oat_", "dop_v1_", "doo_v1_", "dor_v1_", "shpat_", "shpca_",
            "shppa_", "shpss_", "lin_api_", "lin_oauth_", "ntn_", "pmak-", "nrak-", "nrjs-", "nrii-", "nral", "glsa_", "sg.", "dapi",
        ],
        r"\b(?:(?:gsk|r8|ntn)_[A-Za-z0-9]{20,}|(?:xai|pplx|nvapi)-[A-Za-z0-9_-]{20,}|pypi-[A-Za-z0-9_-]{32,}|dckr_[po]at_[A-Za-z0-9_-]{20,}|do[opr]_v1_[a-f0-9]{32,}|shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}|lin_(?:api|oauth)_[A-Za-z0-9]{20,}|(?:PMAK|NRAK|NRII)-[A-Za-z0-9-]{20,}|NRJS-[a-f0-9]{19}|[a-f0-9]{36}NRAL|glsa_[A-Za-z0-9_]{20,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|dapi[a-f0-9]{32})",
    ),
    pattern(
        "llm_key",
        "Pinecone, LangSmith, Fireworks, Together, Cerebras, Tavily, Jina, Voyage, Firecrawl, E2B, W&B, Vercel AI",
        &["pcsk_", "lsv2_", "fw_", "tgp_v1_", "csk-", "tvly-", "jina_", "pa-", "fc-", "e2b_", "wandb_v1_", "vck_"],
        r"\b(?:pcsk_[A-Za-z0-9_]{20,}|lsv2_(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}|fw_[A-Za-z0-9]{20,}|tgp_v1_[A-Za-z0-9_-]{32,}|csk-[a-z0-9]{40,}|tvly-[A-Za-z0-9-]{20,}|jina_[A-Za-z0-9_-]{40,}|pa-[A-Za-z0-9_-]{43}\b|fc-[a-f0-9]{32}|e2b_[a-f0-9]{40}|wandb_v1_[A-Za-z0-9_-]{40,}|vck_[A-Za-z0-9]{24,})",
    ),
    pattern("age_key", "age", &["age-secret-key-"], r"\bAGE-SECRET-KEY-(?:PQ-)?1[A-Z0-9]{20,}"),
    pattern("bot_token", "Telegram", &[":aa"], r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}"),
    pattern(
        "discord_token",
        "Discord bots",
        &[],
        r"\b(?:MT|Mj|Mz|ND|NT|Nj|Nz|OD|OT)[A-Za-z0-9_-]{21,26}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}",
    )
    .only(is_mixed),
    pattern(
        "webhook",
        "webhooks of Slack, Discord, Teams and Zapier",
        &["hooks.slack.com/", "/api/webhooks/", "webhook.office.com/", "hooks.zapier.com/"],
        r"(?:hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/|webhook\.office\.com/webhookb2/|hooks\.zapier\.com/hooks/catch/)([A-Za-z0-9/_@-]{16,})",
    ),
    pattern("npm_token", "npm", &["npm_"], r"\bnpm_[A-Za-z0-9]{36}"),
    pattern(
        "slack_token",
        "Slack: bot, user, app, configuration, refresh and session tokens, `xoxd` cookies",
        &["xox", "xapp-"],
        r"\b(?:xoxd-[A-Za-z0-9%+/=_-]{10,}|xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[0-9]-[A-Za-z0-9-]{10,})",
    ),
    pattern("aws_key", "AWS key ids", &["akia", "asia", "abia", "acca"], r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"),
    pattern("aws_bedrock_key", "AWS Bedrock", &["absk", "bedrock-api-key-"], r"\b(?:ABSK[A-Za-z0-9+/]{40,}=*|bedrock-api-key-[A-Za-z0-9+/=_-]{20,})"),
    pattern("google_key", "Google API keys", &["aiza"], r"\bAIza[0-9A-Za-z_-]{35}"),
    pattern(
        "google_token",
        "Google OAuth: access and refresh tokens, client secrets",
        &["ya29.", "gocspx-", "1//0"],
        r"\b(?:ya29\.[A-Za-z0-9_.-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}|1//0[A-Za-z0-9_-]{30,})",
    ),
    pattern("azure_sas", "Azure shared access signatures", &["sig="], r"\bsig=([A-Za-z0-9%+/=_-]{20,})"),
    pattern(
        "azure_secret",
        "Azure: Entra ID client secrets, keys of storage, AI services, API management and DevOps",
        &["q~", "jqqj99", "+ast", "+amc", "+aba", "apim", "acdb", "azse", "azdo"],
        r"[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}|\b[A-Za-z0-9]{52}JQQJ99[A-Za-z0-9]{26}\b|\b[A-Za-z0-9/+]{76}(?:APIM|ACDb|\+(?:ABa|AMC|ASt))[A-Za-z0-9/+]{5}[AQgw]==|\b[A-Za-z0-9]{42}AzSe[A-Za-z0-9]{6}\b|\b[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}\b",
    ),
    pattern("twilio_key", "Twilio", &["sk"], r"\bSK[0-9a-f]{32}\b"),
    pattern(
        "mail_key",
        "Mailgun, Mailchimp, Brevo",
        &["key-", "-us", "pubkey-", "xkeysib-", "xsmtpsib-"],
        r"\b(?:key-[0-9a-f]{32}|[0-9a-f]{32}-us[0-9]{1,2}|xkeysib-[0-9a-f]{64}-[A-Za-z0-9]{16}|xsmtpsib-[0-9a-f]{64}-[A-Za-z0-9]{16})\b",
    ),
    pattern("mailgun_key", "Mailgun, newer keys", &[], r"\b[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}\b"),
    pattern("square_key", "Square", &["eaaa", "sq0"], r"\b(?:EAAA[A-Za-z0-9_-]{56,}|sq0[a-z]{3}-[A-Za-z0-9_-]{22,})"),
    pattern("meta_token", "Meta", &["eaa"], r"\bEAA[A-Za-z0-9]{80,}"),
    pattern("vault_token", "HashiCorp Vault", &["hvs.", "hvb.", "hvr."], r"\bhv[sbr]\.[A-Za-z0-9_-]{20,}"),
    pattern("vault_token", "HashiCorp Vault, older tokens", &["s."], r"\bs\.[A-Za-z0-9]{24}\b").only(is_mixed),
    pattern("notion_secret", "Notion, older keys", &["secret_"], r"\bsecret_[A-Za-z0-9]{43}\b"),
    pattern("figma_token", "Figma", &["figd_", "figu_", "figo_"], r"\bfig[duo]_[A-Za-z0-9_-]{36,}"),
    pattern(
        "grafana_key",
        "Grafana: cloud tokens and API keys",
        &["glc_", "eyjrijoi"],
        r"\b(?:glc_[A-Za-z0-9+/]{32,}={0,2}|eyJrIjoi[A-Za-z0-9+/]{60,}={0,2})",
    ),
    pattern(
        "atlassian_token",
        "Atlassian and Bitbucket",
        &["atatt3", "atctt3", "atbb"],
        r"\b(?:AT[AC]TT3[A-Za-z0-9_=-]{60,}|ATBB[A-Za-z0-9]{24,})",
    ),
    pattern(
        "registry_token",
        "RubyGems, crates.io, JFrog, NuGet, Clojars",
        &["rubygems_", "cio", "akcp", "oy2", "clojars_"],
        r"\b(?:rubygems_[a-f0-9]{48}|cio[A-Za-z0-9]{32}\b|AKCp[A-Za-z0-9]{60,}|oy2[a-z0-9]{43}\b|CLOJARS_[a-z0-9]{60})",
    ),
    pattern(
        "hosting_token",
        "Heroku, Fly, Vercel, Supabase, PlanetScale, Cloudflare, Netlify, Doppler, Terraform Cloud, Pulumi, Neon",
        &["hrku-", "fm1", "fm2", "fo1_", "vcp_", "vci_", "vca_", "vcr_", "sbp_", "sb_secret_", "pscale_", "v1.0-", "nfp_", "dp.", ".atlasv1.", "pul-", "napi_"],
        r"\b(?:HRKU-[A-Za-z0-9_-]{36,}|fm[12][ar]?_[A-Za-z0-9+/=_-]{20,}|fo1_[A-Za-z0-9_-]{40,}|vc[piar]_[A-Za-z0-9]{24,}|sbp_[a-f0-9]{40}|sb_secret_[A-Za-z0-9_-]{20,}|pscale_(?:tkn|oauth|pw)_[A-Za-z0-9_.=-]{32,}|v1\.0-[a-f0-9]{24}-[a-f0-9]{100,}|nfp_[A-Za-z0-9]{36,}|dp\.(?:pt|st|ct|scim|audit|sa)\.[A-Za-z0-9._-]{40,}|[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}|pul-[a-f0-9]{40}|napi_[a-z0-9]{40,})",
    ),
    pattern(
        "service_token",
        "Sentry, HubSpot, Airtable, Buildkite, CircleCI, SonarQube, Sourcegraph, 1Password, Dropbox, Contentful, Typeform",
        &["sntrys_", "sntryu_", "pat-", "pat", "bkua_", "ccipat_", "sqp_", "squ_", "sqa_", "sgp_", "ops_eyj", "sl.", "cfpat-", "tfp_"],
        r"\b(?:sntrys_eyJ[A-Za-z0-9+/=_-]{40,}|sntryu_[a-f0-9]{64}|pat-(?:na|eu)[0-9]-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|pat[A-Za-z0-9]{14}\.[a-f0-9]{64}|bkua_[a-z0-9]{40}|CCIPAT_[A-Za-z0-9_]{40,}|sq[pua]_[a-f0-9]{40}|sgp_(?:[a-f0-9]{16}_)?[a-f0-9]{40}|ops_eyJ[A-Za-z0-9+/=_-]{100,}|sl\.(?:u\.)?[A-Za-z0-9_-]{100,}|CFPAT-[A-Za-z0-9_-]{40,}|tfp_[A-Za-z0-9_.=-]{40,})",
    ),
    pattern(
        "service_token",
        "Tailscale, Resend, ElevenLabs, PostHog, Snyk, Mapbox, Prefect, ReadMe, EasyPost, Dynatrace, Flutterwave, Adafruit, Alibaba, Infracost",
        &["tskey-", "re_", "sk_", "phx_", "snyk_", "sk.eyj", "pnu_", "pnb_", "rdme_", "ezak", "eztk", "dt0", "flwseck", "aio_", "ltai", "ico-"],
        r"\b(?:tskey-[a-z]{3,8}-[A-Za-z0-9]{8,}-[A-Za-z0-9]{20,}|re_[A-Za-z0-9]{8}_[A-Za-z0-9]{20,}|sk_[a-f0-9]{48}|phx_[A-Za-z0-9]{40,}|snyk_[us]at\.[A-Za-z0-9]{8}\.[A-Za-z0-9_.-]{20,}|sk\.eyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}|pn[ub]_[A-Za-z0-9]{36}|rdme_[A-Za-z0-9]{60,}|EZ[AT]K[A-Za-z0-9]{54}|dt0[a-z][0-9]{2}\.[A-Z0-9]{24}\.[A-Z0-9]{64}|FLWSECK(?:_TEST)?-[A-Za-z0-9]{12,}-X|aio_[A-Za-z0-9]{28}|LTAI[A-Za-z0-9]{16,26}|ico-[A-Za-z0-9]{32})",
    ),
    pattern(
        "llm_key",
        "Mistral and Cohere: keys behind `=` or `:` and the vendor's name, as in `MISTRAL=…`",
        &["mistral", "cohere"],
        r#"(?i)(?:mistral|cohere)[a-z0-9_. -]{0,20}["'`]?\s*(?:=>|:=|[=:])\s*["'`]?([a-z0-9]{40}|[a-z0-9]{32})\b"#,
    )
    .only(is_mixed),
    pattern(
        "service_token",
        "Datadog and Cloudflare: keys behind `=` or `:` and the vendor's name, as in `datadog: …`",
        &["datadog", "cloudflare"],
        r#"(?i)(?:datadog|cloudflare)[a-z0-9_. -]{0,20}["'`]?\s*(?:=>|:=|[=:])\s*["'`]?([a-z0-9_-]{40}|[0-9a-f]{37}|[0-9a-f]{32})(?:[^a-z0-9_-]|\z)"#,
    )
    .only(has_digits),
    pattern("dsn_key", "keys in Sentry's DSNs", &["sentry"], r"https?://([0-9a-f]{32})(?::[0-9a-f]{32})?@[A-Za-z0-9.-]*sentry"),
    pattern("basic", "basic credentials", &["basic"], r"(?i)\bbasic\s+([A-Za-z0-9+/]{16,}={0,2})").only(is_encoded),
    pattern(
        "bearer",
        "bearer tokens, and others of an `Authorization` header",
        &["bearer", "authorization"],
        r#"(?i)\b(?:bearer|authorization["']?\s*[:=]\s*["']?(?:token|key|api-?key))\s+([A-Za-z0-9._~+/-]{8,}=*)"#,
    ),
    pattern("url_password", "passwords in URLs", &["://"], r"(?i)\b[a-z][a-z0-9+.-]*://[^/\s:@\[\]]*:([^/\s@\[\]]+)@"),
    pattern(
        "url_password",
        "passwords with slashes in URLs",
        &["://"],
        r#"(?i)\b[a-z][a-z0-9+.-]*://[^/\s:@\[\]]*:([^\s@\[\]"'<>]{3,100})@[a-z0-9]"#,
    )
    .only(is_no_port),
    pattern(
        "assigned",
        "`password=…`, `api_key=…` and the like",
        &["="],
        r#"(?i)(?:(?:api|account|shared[_-]?access)[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?d|passphrase|(?:access|auth|refresh|session)[_-]?token)["']?\s*=\s*["']?([^\s"'&,;\[\]]{4,})"#,
    )
    .only(is_no_code),
    pattern(
        "assigned",
        "`GITHUB_TOKEN=…`, `password: …` and other names of secrets in text, where the value is more than a word",
        &["token", "secret", "passw", "kennwort", "passphrase", "pwd", "key", "dsn", "credential", "cvv", "cvc", "_pass", "connection"],
        r#"(?i)(?:(?:(?:api|access|account|signing|encryption|master|private|shared|auth|subscription|storage|service)[_-]?keys?|[a-z0-9]+[_-]token|secrets?(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?ds?|passwort|kennwort|passphrases?|\bpwd|_pwd|_pass|\bdsn|_dsn|credentials?|\bcvv2?|\bcvc2?|connection[_-]?string)\s*[=:：＝]|\btoken\s*[=＝])\s*["'`]?([^\s"'`&,;\[\]<>(){}|]*[A-Za-z0-9=+/~@#$^*_-])"#,
    )
    .only(is_credible),
    pattern(
        "assigned",
        "quoted values after quoted names of secrets in text, as in `\"pw\": \"…\"`",
        &["secret", "passw", "passphrase", "key", "dsn", "credential", "token", "pw\"", "pw'"],
        r#"(?i)["'](?:[a-z0-9_-]*[_-])?(?:(?:api|access|account|signing|encryption|master|private)[_-]?key|(?:api|access|auth|refresh|session|bot)[_-]?token|secret|passw(?:or)?d|passwort|passphrase|pw|dsn)["']\s*:\s*["']([^"'\s,:{}\[\]\\][^"'\s\\\[]{5,200})["']"#,
    )
    .only(is_credible),
    pattern(
        "assigned",
        "`--password …`, `--api-key …` and the like on command lines, `sshpass -p …`",
        &["--", "sshpass"],
        r#"(?i)(?:\bsshpass[ \t]+-p|--(?:[a-z0-9]+-)*(?:(?:api|access|secret|account|auth|private)-?key|secret|passw(?:or)?d|passphrase|pwd|token|credentials?))[ \t]+["']?([^\s"'`&;<>|()]*[A-Za-z0-9=+/~@#$^*_!-])"#,
    )
    .only(is_credible),
    pattern(
        "assigned",
        "`mysql -p…` and the like, without a space",
        &["mysql", "mariadb"],
        r#"\b(?:mysql|mysqldump|mysqladmin|mariadb|mariadb-dump)\b[^\r\n|;]{0,400}?[ \t]-p["']?([^\s"'`&;<>|()-][^\s"'`&;<>|()]*[A-Za-z0-9=+/~@#$^*_!-])"#,
    )
    .only(is_credible),
    pattern(
        "assigned",
        "`token: …` in text, where the value is long and random",
        &["token"],
        r#"(?i)(?:^|[^a-z0-9_.-])token\s*[:：]\s*["'`]?([a-z0-9_~+/=.-]{16,})"#,
    )
    .only(is_random),
    pattern(
        "basic",
        "`curl -u user:…` and `--user`, `--proxy-user`",
        &["curl"],
        r#"(?i)\bcurl\b[^\r\n|;]{0,400}?[ \t](?:-[a-z]*u[ \t]*|--(?:proxy-)?user[ \t=]+)["']?[^\s:"'\[\]]{1,100}:([^\s"'\[\]]{4,})"#,
    ),
    pattern(
        "assigned",
        "parts of forms (`multipart/form-data`) under names of secrets",
        &["form-data"],
        r#"(?i)\bform-data;[^\r\n]{0,200}?\bname="?(?:[a-z0-9_.-]{0,100}[_.-])?(?:(?:api|access|account|private|secret)?[_-]?key|token|secret|passw(?:or)?d|passphrase|pwd|credentials?)"?(?:;[^\r\n]{0,200})?\r?\n(?:[^\r\n]{1,1000}\r?\n){0,4}\r?\n([^\r\n\[\]]{4,})"#,
    ),
    pattern(
        "assigned",
        "passwords in `.netrc`",
        &["login"],
        r"(?i)\b(?:machine\s+\S{1,200}|default)\s+login\s+\S{1,200}\s+password\s+([^\s\[\]]{4,})",
    ),
    pattern(
        "assigned",
        "`password&quot;: &quot;…` and the like in HTML",
        &["&quot;", "&#", "&apos;", "&equals;", "&colon;"],
        r#"(?i)(?:(?:api|access|signing|encryption|private)[_-]?key|[a-z0-9]+[_-]token|\btoken|secret|passw(?:or)?d|passphrase)(?:&quot;|&apos;|&#0*3[49];|&#x2[27];)?\s*(?:[=:]|&#0*(?:58|61);|&#x3[ad];|&colon;|&equals;)\s*(?:["']|&quot;|&apos;|&#0*3[49];|&#x2[27];)?([^\s&"'<>;\[\]]+)"#,
    )
    .only(is_credible),
    pattern(
        "assigned",
        "`<password>…</password>` in XML, `<input name=\"password\" value=\"…\">` in HTML, where the value is more than a word",
        &["</", "<input"],
        r#"(?i)<(?:(?:[a-z0-9_.:-]{0,60}[_.:-])?(?:(?:api|access|signing|encryption|private)[_-]?key|token|secret|passw(?:or)?d|passphrase)(?:\s[^<>]{0,200})?>\s*|input\b[^<>]{0,200}?\sname=["']?(?:[a-z0-9_.-]{0,60}[_.-])?(?:(?:api|access|signing|encryption|private)[_-]?key|token|secret|passw(?:or)?d|passphrase)["']?\s[^<>]{0,200}?\bvalue=["'])([^<>"'\s\[\]]{4,})"#,
    )
    .only(is_credible),
    pattern(
        "parameter",
        "`?key=`, `&sig=`, `&code=`, `&auth=`, `&token=` and the like in URLs and forms",
        &["key=", "sig=", "signature=", "code=", "auth=", "token=", "hmac=", "pass=", "pwd=", "session=", "sid=", "otp=", "ticket="],
        r#"(?i)(?:\A|[?&])(?:[a-z0-9_.-]*[_.-])?(?:key|sig|signature|code|auth|token|hmac|pass|pwd|session|sid|otp|ticket)=([^&\s"'#<>\[\]]{8,})"#,
    )
    .only(is_credible),
    pattern(
        "aws_secret",
        "AWS secret keys after their name or key id, as in `the secret access key is …`",
        &["secret", "aws", "akia", "asia"],
        r"(?:(?i:\baws\b|amazon|secret[ _-]{0,2}(?:access[ _-]{0,2})?key)|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b)[^\r\n]{0,80}?(?:[^A-Za-z0-9/+=_-])([A-Za-z0-9/+]{40})(?:[^A-Za-z0-9/+=_-]|\z)",
    )
    .only(is_mixed),
    pattern(
        "assigned",
        "`the password is …` and the like in prose",
        &["passw", "passphrase", "passcode", "key", "token", "secret"],
        r#"(?i)\b(?:passw(?:or)?d|passphrase|passcode|(?:api|access|secret)[ _-]?key|(?:api|access|auth)[ _-]token|secret)(?: (?:for|of|to) [^\r\n.,:;!?]{1,40}?)? (?:is|was|will be)(?: now)?:? ["'`]?([^\s"'`,;<>()\[\]{}|]*[A-Za-z0-9=+/~@#$^*_!-])"#,
    )
    .only(is_credible),
    pattern(
        "card",
        "card numbers with their check digit: Visa, Mastercard, American Express, Discover, Diners Club, JCB, UnionPay, Maestro, Mir, RuPay, Troy",
        &[],
        r"\b(?:[2-69][0-9]{12,18}|8[12][0-9]{14}|[2-69][0-9]{3}(?:[ -]?[0-9]{4}){3}|3[47][0-9]{2}[ -]?[0-9]{6}[ -]?[0-9]{5}|3[0689][0-9]{2}[ -]?[0-9]{6}[ -]?[0-9]{4})\b",
    )
    .only(is_card),
    pattern(
        "iban",
        "IBANs with their check digits, in one piece or in groups of four",
        &[],
        r"\b(?:(?:NO)[0-9]{2}(?: ?[A-Z0-9]{4}){2} ?[A-Z0-9]{3}|(?:BE)[0-9]{2}(?: ?[A-Z0-9]{4}){3}|(?:DK|FI|FK|FO|GL|NL|SD)[0-9]{2}(?: ?[A-Z0-9]{4}){3} ?[A-Z0-9]{2}|(?:MK|SI)[0-9]{2}(?: ?[A-Z0-9]{4}){3} ?[A-Z0-9]{3}|(?:AT|BA|EE|KZ|LT|LU|MN|XK)[0-9]{2}(?: ?[A-Z0-9]{4}){4}|(?:CH|HR|LI|LV)[0-9]{2}(?: ?[A-Z0-9]{4}){4} ?[A-Z0-9]{1}|(?:BG|BH|CR|DE|GB|GE|IE|ME|RS|VA)[0-9]{2}(?: ?[A-Z0-9]{4}){4} ?[A-Z0-9]{2}|(?:AE|GI|IL|IQ|OM|SO|TL)[0-9]{2}(?: ?[A-Z0-9]{4}){4} ?[A-Z0-9]{3}|(?:AD|CZ|ES|MD|PK|RO|SA|SE|SK|TN|VG)[0-9]{2}(?: ?[A-Z0-9]{4}){5}|(?:LY|PT|ST)[0-9]{2}(?: ?[A-Z0-9]{4}){5} ?[A-Z0-9]{1}|(?:IS|TR)[0-9]{2}(?: ?[A-Z0-9]{4}){5} ?[A-Z0-9]{2}|(?:BI|DJ|FR|GR|IT|MC|MR|SM)[0-9]{2}(?: ?[A-Z0-9]{4}){5} ?[A-Z0-9]{3}|(?:AL|AZ|BY|CY|DO|GT|HU|LB|NI|PL|SV)[0-9]{2}(?: ?[A-Z0-9]{4}){6}|(?:BR|EG|PS|QA|UA)[0-9]{2}(?: ?[A-Z0-9]{4}){6} ?[A-Z0-9]{1}|(?:JO|KW|MU|YE)[0-9]{2}(?: ?[A-Z0-9]{4}){6} ?[A-Z0-9]{2}|(?:MT|SC)[0-9]{2}(?: ?[A-Z0-9]{4}){6} ?[A-Z0-9]{3}|(?:LC)[0-9]{2}(?: ?[A-Z0-9]{4}){7}|(?:RU)[0-9]{2}(?: ?[A-Z0-9]{4}){7} ?[A-Z0-9]{1})\b",
    )
    .only(is_iban),
    pattern(
        "email",
        "e-mail addresses",
        &["@"],
        r"(?i)[a-z0-9](?:[a-z0-9._%+-]*[a-z0-9_+-])?@(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}\b",
    )
    .personal(),
    pattern(
        "phone",
        "phone numbers: with `+` and a country, or as `(555) 123-4567` and `555-123-4567`",
        &[],
        r"\+[1-9][0-9]{0,2}(?:[ .-]?\([0-9]{1,4}\))?(?:[ .-]?[0-9]{1,4}){1,4}[ .-]?[0-9]{2,6}|(?:\([2-9][0-9]{2}\) ?|\b[2-9][0-9]{2}[-. ])[0-9]{3}[-. ][0-9]{4}\b",
    )
    .only(is_phone)
    .personal(),
    pattern("ssn", "social security numbers of the United States", &[], r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b")
        .only(is_ssn)
        .personal(),
];

#[cfg(test)]
mod tests;
