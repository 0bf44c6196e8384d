use regex::Regex;

use super::*;
use crate::redaction::{RedactionRules, Redactor};

#[test]
fn cards_have_a_network_and_a_check_digit_and_are_no_decimals() {
    let is_card = |text: &str, from: usize| is_card(&MatchedText::of(text, &(from..text.len())));
    for card in [
        "4111111111111111",
        "5500-0000-0000-0004",
        "2221000000000009",
        "378282246310005",
        "6011111111111117",
        "3530111333300000",
        "30569309025904",
        "6200000000000005",
        "6759649826438453",
        "2200000000000004",
        "4222222222222",
    ] {
        assert!(is_card(card, 0), "{card}");
    }
    assert!(!is_card("4111111111111112", 0) && !is_card("1234567812345670", 0) && !is_card("0.4111111111111111", 2));
}

#[test]
fn a_value_after_a_name_is_more_than_a_word() {
    let is_credible = |text: &str| is_credible(&MatchedText::of(text, &(0..text.len())));
    for value in ["hunter2", "p@ssword", "a1b2c3d4"] {
        assert!(is_credible(value), "{value}");
    }
    for value in
        ["String", "process.env.SECRET", "$PASSWORD1", "<your-key-1>", "******", "12345678", "required", "abc12"]
    {
        assert!(!is_credible(value), "{value}");
    }
}

/// So many characters of the kind that keys are made of.
fn made_of(letters: &str, count: usize) -> String {
    letters.chars().cycle().take(count).collect()
}

fn mix(count: usize) -> String {
    made_of("aB3dE6gH9jK2mN5pQ8sT1vW4yZ7", count)
}

fn low(count: usize) -> String {
    made_of("abdeghjkmnpqstvwyz", count)
}

fn upper(count: usize) -> String {
    made_of("B3DE6GH9JK2MN5PQ8ST1VW4YZ7", count)
}

fn hex(count: usize) -> String {
    made_of("0f1e2d3c4b5a69788796", count)
}

/// Something that a row of the table finds, the part of it that must not survive, and something like it that is no secret.
#[derive(Clone)]
struct Sample {
    row: &'static str,
    found: String,
    secret: String,
    near: String,
}

fn sample(row: &'static str, before: &str, secret: String, near: String) -> Sample {
    Sample { row, found: format!("{before}{secret}"), secret, near }
}

/// A sample whose near miss is the same with a secret that is too short.
fn shorter(row: &'static str, before: &str, made: fn(usize) -> String, count: usize) -> Sample {
    sample(row, before, made(count), format!("{before}{}", made(count - 1)))
}

/// Samples of the first rows.
fn first_samples() -> Vec<Sample> {
    let near = |text: &str| text.to_owned();
    let [before, after] = ["BEGIN EC", "END EC"].map(|word| format!("-----{word} PRIVATE KEY-----"));
    let public = "-----BEGIN PUBLIC KEY-----\nMIIE\n-----END PUBLIC KEY-----";
    let [pem, jwt] = [format!("{before}\n{}\n{after}", mix(40)), format!("eyJ{0}.eyJ{0}.{0}", mix(20))];
    let discord = format!("MT{}.{}.{}", mix(24), mix(6), mix(27));
    vec![
        sample("private keys", "", pem, near(public)),
        sample("JSON web tokens", "", jwt, near("eyJhbGci.x")),
        shorter("keys that begin with `sk-`", "sk-", mix, 16),
        shorter("Stripe", "rk_live_", mix, 16),
        shorter("Hugging Face", "hf_", mix, 20),
        shorter("GitHub", "ghp_", mix, 36),
        shorter("GitLab", "glpat-", mix, 20),
        shorter("Groq", "gsk_", mix, 20),
        shorter("Pinecone", "pcsk_", mix, 20),
        shorter("age", "AGE-SECRET-KEY-1", upper, 20),
        sample("Telegram", "123456789:", format!("AA{}", mix(33)), format!("123456789:AB{}", mix(33))),
        sample("Discord bots", "", discord, format!("MT{}.{}.{}", low(24), low(6), low(27))),
        sample(
            "webhooks",
            "https://hooks.slack.com/services/",
            format!("T0/B0/{}", mix(24)),
            near("https://hooks.slack.com/services/T0"),
        ),
        shorter("npm", "npm_", mix, 36),
    ]
}

/// Samples of the other rows.
fn further_samples() -> Vec<Sample> {
    let near = |text: &str| text.to_owned();
    let mailgun = format!("{}-{}-{}", hex(32), hex(8), hex(8));
    vec![
        shorter("Slack", "xoxb-", mix, 10),
        shorter("AWS key ids", "AKIA", upper, 16),
        shorter("AWS Bedrock", "ABSK", mix, 40),
        shorter("Google API keys", "AIza", mix, 35),
        shorter("Google OAuth", "ya29.", mix, 20),
        shorter("Azure shared access", "a sig=", mix, 20),
        shorter("Azure: Entra", "abc1Q~", mix, 31),
        shorter("Twilio", "SK", hex, 32),
        shorter("Mailgun, Mailchimp", "key-", hex, 32),
        sample("Mailgun, newer", "", mailgun.clone(), mailgun[..mailgun.len() - 1].to_owned()),
        shorter("Square", "EAAA", mix, 56),
        shorter("Meta", "EAA", mix, 80),
        shorter("HashiCorp Vault", "hvs.", mix, 20),
        sample("HashiCorp Vault, older", "s.", mix(24), format!("s.{}", low(24))),
        shorter("Notion, older", "secret_", mix, 43),
        shorter("Figma", "figd_", mix, 36),
        shorter("Grafana", "glc_", mix, 32),
        shorter("Atlassian", "ATATT3", mix, 60),
        shorter("RubyGems", "rubygems_", hex, 48),
        shorter("Heroku", "HRKU-", mix, 36),
        shorter("Sentry", "sntryu_", hex, 64),
        shorter("Tailscale", "pnu_", mix, 36),
        shorter("Mistral", "MISTRAL=", mix, 32),
        shorter("Datadog", "datadog key: ", hex, 32),
        sample("keys in Sentry's DSNs", "https://", hex(32), format!("https://{}/o1.ingest.sentry.io/1", hex(32))),
        sample("basic", "Basic ", mix(20), format!("Basic {}", low(20))),
        sample("bearer", "Bearer ", mix(20), near("Bearer of news")),
        sample("passwords in URLs", "postgres://bob:", mix(8), near("postgres://bob@db/x")),
        sample(
            "passwords with slashes",
            "postgres://bob:",
            format!("{}/{}", mix(4), mix(4)),
            near("http://host:8000/p@th"),
        ),
    ]
}

/// Samples of the rows of names in text.
fn samples_in_text() -> Vec<Sample> {
    let near = |text: &str| text.to_owned();
    vec![
        sample("`password=…`", "password=", mix(8), near("password=abc")),
        sample("`GITHUB_TOKEN=…`", "DEPLOY_TOKEN: ", mix(8), near("DEPLOY_TOKEN: required")),
        sample("quoted values", "say 'api_key': '", mix(8), near("say 'api_key': 'required'")),
        sample("`--password …`", "deploy --db-password ", mix(8), near("deploy --password required")),
        sample("`mysql -p…`", "mysql -u root -p", mix(8), near("mysql -u root -p shop2024")),
        sample("`token: …`", "Token: ", mix(16), near("token: Qwen2.5-72B-Instruct-GPTQ-Int4")),
        sample("`curl -u user:…`", "curl -su 'x' --user \"bob:", mix(8), near("curl -u bob https://x.example")),
        sample(
            "parts of forms",
            "Content-Disposition: form-data; name=\"db_password\"\r\nContent-Type: text/plain\r\n\r\n",
            mix(8),
            near("Content-Disposition: form-data; name=\"author\"\r\n\r\nJane Doe"),
        ),
        sample("passwords in `.netrc`", "machine x login bob password ", mix(8), near("login now password now")),
        sample("`password&quot;", "password&quot;: &quot;", mix(8), near("password&quot;: &quot;required")),
        sample("`<password>…</password>`", "<db_password id=\"x\">", mix(8), near("<password>required</password>")),
        sample("`?key=`", "https://x.example/?key=", mix(8), near("https://x.example/?key=abcdefgh")),
        shorter("AWS secret keys", "for aws we have ", mix, 40),
        sample("`the password is …`", "the password for Bob's box is ", mix(8), near("the password is required")),
        sample("card numbers", "", near("4111111111111111"), near("4111111111111112")),
        sample("IBANs", "", near("DE89 3704 0044 0532 0130 00"), near("DE88 3704 0044 0532 0130 00")),
        sample("e-mail", "", near("jane.doe@example.org"), near("jane.doe@example")),
        sample("phone numbers", "", near("+49 30 901820"), near("+49 30")),
        sample("social security", "", near("078-05-1120"), near("000-05-1120")),
    ]
}

/// What follows a secret in its sample.
fn end_of(row: &str) -> &'static str {
    match row {
        "keys in Sentry's DSNs" => ":0f1e2d3c4b5a697887960f1e2d3c4b5a@o1.ingest.sentry.io/1",
        "passwords in URLs" | "passwords with slashes" => "@db/x",
        "quoted values" => "'",
        "`<password>…</password>`" => "</db_password>",
        _ => "",
    }
}

#[test]
fn each_form_of_a_row_of_many_vendors_is_found() {
    let rules = RedactionRules::all();
    for secret in [
        format!("tskey-auth-{}-{}", mix(17), mix(32)),
        format!("re_{}_{}", mix(8), mix(24)),
        format!("sk_{}", hex(48)),
        format!("phx_{}", mix(43)),
        format!("snyk_uat.{}.{}", mix(8), mix(40)),
        format!("sk.eyJ1Ijoi{}.{}", mix(40), mix(22)),
        format!("rdme_{}", mix(70)),
        format!("EZAK{}", mix(54)),
        format!("dt0c01.{}.{}", upper(24), upper(64)),
        format!("FLWSECK-{}-X", hex(32)),
        format!("aio_{}", mix(28)),
        format!("LTAI{}", mix(20)),
        format!("ico-{}", mix(32)),
        format!("Authorization: Token {}", hex(40)),
        format!("sshpass -p '{}' ssh x", mix(10)),
        format!("sl.u.{}", mix(130)),
        format!("<input type=text name=\"password\" value=\"{}\">", mix(10)),
    ] {
        let clean = Redactor::new(&rules).text(&format!("here is {secret} ok?")).unwrap_or_default();
        assert!(
            clean.contains("[REDACTED:") && !clean.contains(&mix(8)) && !clean.contains(&hex(8)),
            "{secret}: {clean}"
        );
    }
}

#[test]
fn every_row_of_the_table_finds_its_secrets_and_keeps_what_is_like_them() {
    let rules = RedactionRules::all();
    let samples = [first_samples(), further_samples(), samples_in_text()].concat();
    assert_eq!(samples.len(), BUILT_IN.len(), "each row has a sample");
    for (pattern, Sample { row, found, secret, near }) in BUILT_IN.iter().zip(samples) {
        assert!(pattern.what.starts_with(row), "{row}: the sample stands at the row {}", pattern.what);
        let regex = Regex::new(pattern.regex).unwrap();
        let finds = |text: &str| {
            let groups = regex.captures_iter(text).filter_map(|groups| groups.get(1).or_else(|| groups.get(0)));
            groups.map(|group| group.range()).any(|span| (pattern.holds)(&MatchedText::of(text, &span)))
        };
        let clean = |text: &str| Redactor::new(&rules).text(text).unwrap_or_else(|| text.to_owned());
        let (text, near) = (format!("say {found}{} now", end_of(row)), format!("say {near} now"));
        assert!(
            finds(&text) && clean(&text).contains(&format!("[REDACTED:{}:1]", pattern.kind)),
            "{row}: {}",
            clean(&text)
        );
        assert!(!clean(&text).contains(&secret), "{row}: {}", clean(&text));
        assert!(!finds(&near), "{row} finds {near}");
        assert_eq!(clean(&near), near, "{row}");
    }
}

#[test]
fn keys_without_a_form_of_their_own_are_found_behind_their_vendors_name() {
    let rules = RedactionRules::all();
    let clean = |text: &str| Redactor::new(&rules).text(text).unwrap_or_else(|| text.to_owned());
    for (before, secret) in [
        ("export MISTRAL_LIVE=", mix(32)),
        ("cohere: ", mix(40)),
        ("Cohere production => '", mix(40)),
        ("DATADOG_APP: ", hex(40)),
        ("cloudflare := \"", mix(40)),
        ("Cloudflare global: ", hex(37)),
    ] {
        let text = format!("{before}{secret}\" now");
        assert!(!clean(&text).contains(&secret), "{}", clean(&text));
    }
    for kept in [
        "mistral: mistral-large-2411",
        "a coherent answer: yes",
        "cohere (rerank): fine",
        "cloudflare: https://one.example",
    ] {
        assert_eq!(clean(kept), kept);
    }
}

#[test]
fn names_of_secrets_are_read_on_command_lines_in_pages_and_in_prose() {
    let rules = RedactionRules::default();
    let clean = |text: &str| Redactor::new(&rules).text(text).unwrap_or_else(|| text.to_owned());
    let secret = mix(12);
    for before in [
        "mysql --password ",
        "tool --max-tokens 5 --hf-token \"",
        "curl -s -u admin:",
        "curl https://x.example --user='admin:",
        "password：",
        "API_KEY＝",
        "password&#61;",
        "<input name=&quot;api_key&quot; value=x> api_key&equals;&#39;",
        "My passphrase was '",
        "The API key for staging is: `",
        "default login jane password ",
    ] {
        let text = format!("{before}{secret} now");
        assert!(!clean(&text).contains(&secret), "{}", clean(&text));
    }
    for kept in [
        "docker login --password-stdin ghcr.io1",
        "curl --user-agent Bot:12345 --url https://x.example",
        "--eos-token <|im_end|> --max-tokens 4096x",
        "curl -u bob:",
        "the password is wrong, the token is next",
        "the secret is practice. 10,000 hours",
        "Tom &amp; Jerry: a key&nbsp;of 5",
        "login first, password later",
    ] {
        assert_eq!(clean(kept), kept);
    }
}

#[test]
fn code_that_reads_a_secret_is_none() {
    let rules = RedactionRules::default();
    let clean = |text: &str| Redactor::new(&rules).text(text).unwrap_or_else(|| text.to_owned());
    for kept in [
        "secret = os.environ[\"SECRET_KEY\"]",
        "password = getpass.getpass()",
        "if (password=self.password): login(password=read_it())",
        "password = getpass(\"Password: \")",
        "client(api_key=settings.openai_api_key)",
        "API_KEY=$API_KEY ./run.sh; API_KEY=${MY_KEY} ./run.sh",
        "$secret = $password;",
        "export OPENAI_API_KEY=<your-key-here>",
    ] {
        assert_eq!(clean(kept), kept);
    }
    for secret in [
        "$ecret",
        "$ECRET",
        "$2b$12$abcdef",
        "${HOME}x1",
        "<hunter2>",
        "correct.horse",
        "horse(battery",
        "hunter2()",
        "foo()secretword",
        "vault.secret:correcthorse",
        "vault.secret(correcthorse",
        "a.b(c)d",
        "x.y",
    ] {
        let text = format!("password={secret}{}", if secret.len() < 4 { "zz" } else { "" });
        assert!(!clean(&text).contains(secret), "{}", clean(&text));
    }
}

#[test]
fn names_of_secrets_are_read_in_other_words_and_behind_characters_that_are_not_seen() {
    let rules = RedactionRules::default();
    let clean = |text: &str| Redactor::new(&rules).text(text).unwrap_or_else(|| text.to_owned());
    let secret = mix(16);
    for before in [
        "Das Passwort: ",
        "Kennwort: \"",
        "{\"user\": \"bob\", \"pw\": \"",
        "{'db_pw': '",
        "mysqldump --host=db -uroot -p'",
        "mariadb -h db -p",
        "access token: ",
        "Token：",
        "pass\u{200b}word: ",
        "api\u{2060}_\u{feff}key=",
        "the pass\u{200d}word is ",
    ] {
        let text = format!("{before}{secret}\" now");
        assert!(!clean(&text).contains(&secret), "{}", clean(&text));
    }
    let hidden = format!("password: {}\u{200b}{}", mix(8), mix(8));
    assert_eq!(clean(&hidden), "password: [REDACTED:assigned:1]");
    for kept in [
        "Das Passwort: siehe unten, das Kennwort: dort",
        "{\"pw\": \"required\", \"pw\": 12.5, \"pwm\": \"abc12345\"}",
        "mysql -p shop2024 -P3306 --protocol=tcp8",
        "mysqld -pidfile99 | ps -p12345x",
        "token: 4096, token: cl100k_base, next token: electroencephalography",
        "token: 2026-11-24T12:00:00.000001, token: 1234567890123456789",
        "page.token: CiAKGjBpNDd2Nmp2Zml2cXRwYjBpOXA",
        "token: \u{200b}hello",
        "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} a family, \u{feff}no secret",
    ] {
        assert_eq!(clean(kept), kept);
    }
}

#[test]
fn ibans_of_every_length_are_found_and_words_beside_them_stay() {
    let rules = RedactionRules::all();
    let clean = |text: &str| Redactor::new(&rules).text(text).unwrap_or_else(|| text.to_owned());
    for account in [
        "NO9386011117947",
        "BE68 5390 0754 7034",
        "NL91ABNA0417164300",
        "AT61 1904 3002 3457 3201",
        "CH9300762011623852957",
        "GB82 WEST 1234 5698 7654 32",
        "ES91 2100 0418 4502 0005 1332",
        "FR14 2004 1010 0505 0001 3M02 606",
        "PL61109010140000071219812874",
        "MT84MALT011000012345MTLCAST001S",
    ] {
        assert_eq!(clean(&format!("pay EUR 100 to {account} EUR 20")), "pay EUR 100 to [REDACTED:iban:1] EUR 20");
    }
    for kept in
        ["DE89 3704 0044 0532 0130 01", "DE8937040044053201300", "XX89370400440532013000", "NO93 IS THE CODE HERE"]
    {
        assert_eq!(clean(kept), kept);
    }
}

#[test]
fn secret_keys_of_aws_are_found_in_prose_and_digests_are_kept() {
    let rules = RedactionRules::default();
    let clean = |text: &str| Redactor::new(&rules).text(text).unwrap_or_else(|| text.to_owned());
    let key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzLmQ3rTyVw";
    for text in [
        format!("My AWS credentials: AKIAIOSFODNN7EXAMPLE and {key}."),
        format!("the secret access key is `{key}`"),
        format!("secret-access-key -> {key}"),
        format!("AKIAIOSFODNN7EXAMPLE / {key}"),
    ] {
        assert!(clean(&text).contains("[REDACTED:aws_secret:1]") && !clean(&text).contains(key), "{}", clean(&text));
    }
    for kept in [format!("aws commit {}", hex(40)), format!("aws: {key}X"), format!("a word and {key}")] {
        assert_eq!(clean(&kept), kept);
    }
}

#[test]
fn phone_and_social_security_numbers_are_found_and_others_are_kept() {
    let rules = RedactionRules::all();
    let clean = |text: &str| Redactor::new(&rules).text(text).unwrap_or_else(|| text.to_owned());
    for number in
        ["+1 555 123 4567", "+15551234567", "+44 (0)20 7946 0958", "(555) 123-4567", "555-123-4567", "555.123.4567"]
    {
        assert_eq!(clean(&format!("call {number}, please")), "call [REDACTED:phone:1], please");
    }
    assert_eq!(clean("SSN 078-05-1120."), "SSN [REDACTED:ssn:1].");
    for kept in [
        "2026-06-17",
        "192.168.100.1000",
        "1+2345678",
        "x+1234567",
        "12-555-123-4567",
        "id 078-05-1120-7",
        "3.14159265",
    ] {
        assert_eq!(clean(kept), kept);
    }
}
