//! Quotas: token buckets of requests and tokens, and a number of requests in progress, for each key, model or session.
//!
//! A bucket holds as much as its limit and fills up evenly, so that an idle client has all of it again after the quota's time. A request
//! takes 1 when it is admitted; its tokens are taken once they are counted, so the last answer may overdraw them. Time is that of the
//! caller, and nothing is random: the same requests at the same times are refused alike.
//!
//! In the headers `reset` is the time until the bucket is full.

use std::{collections::HashMap, time::Duration};

use base::lock::Lock;
use http::HeaderMap;
use tokio::time::Instant;

use crate::rate_limits::{self, go_duration};

/// Maximum number of clients that have accounts of their own; later ones share one.
const MOST_ACCOUNTS: usize = 1 << 16;

/// Part of a request or token that is lost by rounding.
const ROUNDING: f64 = 1e-6;

/// Time after which a request may come again where others are in progress.
const WHILE_OTHERS_RUN: Duration = Duration::from_secs(1);

/// Limits of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Requests in a time.
    pub requests: Option<u64>,
    /// Tokens of prompts and outputs in a time.
    pub tokens: Option<u64>,
    /// Requests in progress.
    pub concurrent: Option<u64>,
    /// That time.
    pub per: Duration,
}

/// A request beyond a quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaRefusal {
    /// Time after which it would be admitted, if no other came.
    pub retry_after: Duration,
    /// What it is beyond.
    pub message: String,
    /// `x-ratelimit-…`.
    pub headers: HeaderMap,
}

#[derive(Debug, Default)]
pub(crate) struct QuotaBook {
    accounts: Lock<HashMap<u64, QuotaAccount>>,
}

#[derive(Debug, Clone, Copy)]
struct QuotaAccount {
    /// Left of each at `at`; below 0 where it is overdrawn.
    requests: f64,
    tokens: f64,
    at: Instant,
    in_progress: u64,
}

fn float(count: u64) -> f64 {
    count as f64
}

/// Whole requests or tokens that are left of so many.
#[allow(clippy::cast_possible_truncation)] // it is neither below 0 nor above a limit
fn whole(left: f64) -> u64 {
    (left + ROUNDING).max(0.0) as u64
}

impl QuotaLimits {
    fn full(&self, now: Instant) -> QuotaAccount {
        let [requests, tokens] = [self.requests, self.tokens].map(|limit| float(limit.unwrap_or_default()));
        QuotaAccount { requests, tokens, at: now, in_progress: 0 }
    }

    /// Time in which a bucket of this limit gains so much.
    fn time(&self, limit: u64, gain: f64) -> Duration {
        Duration::try_from_secs_f64(gain.max(0.0) / float(limit) * self.per.as_secs_f64()).unwrap_or(Duration::MAX)
    }

    /// Lets time pass.
    fn refill(&self, account: &mut QuotaAccount, now: Instant) {
        let share = now.saturating_duration_since(account.at).as_secs_f64() / self.per.as_secs_f64();
        let filled = |left: f64, limit: Option<u64>| {
            let limit = float(limit.unwrap_or_default());
            (left + share * limit).min(limit)
        };
        *account = QuotaAccount {
            requests: filled(account.requests, self.requests),
            tokens: filled(account.tokens, self.tokens),
            at: account.at.max(now),
            ..*account
        };
    }

    /// What is limited, to how much, and what is left of it.
    fn buckets(&self, account: &QuotaAccount) -> impl Iterator<Item = (&'static str, u64, f64)> {
        let buckets = [("requests", self.requests, account.requests), ("tokens", self.tokens, account.tokens)];
        buckets.into_iter().filter_map(|(what, limit, left)| Some((what, limit?, left)))
    }

    fn headers(&self, account: &QuotaAccount) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (what, limit, left) in self.buckets(account) {
            let reset = go_duration(self.time(limit, float(limit) - left));
            rate_limits::add(&mut headers, what, limit, whole(left), reset);
        }
        headers
    }

    /// The time that is to pass before a request is admitted, and what it is beyond; `None` where it is.
    fn beyond(&self, account: &QuotaAccount) -> Option<(Duration, String)> {
        let per = go_duration(self.per);
        let empty = self.buckets(account).filter(|(.., left)| left + ROUNDING < 1.0);
        let of_buckets =
            empty.map(|(what, limit, left)| (self.time(limit, 1.0 - left), format!("{limit} {what} in {per}")));
        let running = self.concurrent.filter(|limit| account.in_progress >= *limit);
        let of_running = running.map(|limit| (WHILE_OTHERS_RUN, format!("{limit} requests in progress")));
        of_buckets.chain(of_running).max_by_key(|(time, _)| *time)
    }
}

impl QuotaBook {
    fn with<T>(&self, limits: &QuotaLimits, key: u64, now: Instant, act: impl FnOnce(&mut QuotaAccount) -> T) -> T {
        let mut accounts = self.accounts.lock();
        let is_room = accounts.len() < MOST_ACCOUNTS || accounts.contains_key(&key);
        let account = accounts.entry(if is_room { key } else { 0 }).or_insert_with(|| limits.full(now));
        limits.refill(account, now);
        act(account)
    }

    /// Takes a request, and returns the headers about what is left. Nothing is taken where it is beyond the quota.
    pub(crate) fn admit(&self, limits: &QuotaLimits, key: u64, now: Instant) -> Result<HeaderMap, Box<QuotaRefusal>> {
        self.with(limits, key, now, |account| {
            if let Some((retry_after, what)) = limits.beyond(account) {
                let message = format!("Rate limit reached: {what}. Please try again in {}.", go_duration(retry_after));
                return Err(Box::new(QuotaRefusal { retry_after, message, headers: limits.headers(account) }));
            }
            account.requests -= 1.0;
            account.in_progress += 1;
            Ok(limits.headers(account))
        })
    }

    /// Ends a request that took so many tokens.
    pub(crate) fn end(&self, limits: &QuotaLimits, key: u64, tokens: u64, now: Instant) {
        self.with(limits, key, now, |account| {
            account.tokens -= float(tokens);
            account.in_progress = account.in_progress.saturating_sub(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn limits(requests: Option<u64>, tokens: Option<u64>, concurrent: Option<u64>) -> QuotaLimits {
        QuotaLimits { requests, tokens, concurrent, per: MINUTE }
    }

    fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
        headers.get(name).unwrap().to_str().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_come_back_one_by_one() {
        let (book, limits) = (QuotaBook::default(), limits(Some(60), None, None));
        for left in (0..60).rev() {
            let state = book.admit(&limits, 1, Instant::now()).unwrap();
            assert_eq!(header(&state, "x-ratelimit-remaining-requests"), left.to_string());
        }
        let refused = book.admit(&limits, 1, Instant::now()).unwrap_err();
        assert_eq!(refused.retry_after, Duration::from_secs(1));
        assert_eq!(header(&refused.headers, "x-ratelimit-reset-requests"), "1m0s");
        assert!(book.admit(&limits, 2, Instant::now()).is_ok(), "another client has its own");
        tokio::time::advance(Duration::from_millis(999)).await;
        let refused = book.admit(&limits, 1, Instant::now()).unwrap_err();
        assert_eq!(refused.retry_after.as_millis(), 1);
        tokio::time::advance(refused.retry_after).await;
        let state = book.admit(&limits, 1, Instant::now()).unwrap();
        assert_eq!(header(&state, "x-ratelimit-limit-requests"), "60");
        assert_eq!(header(&state, "x-ratelimit-remaining-requests"), "0");
        assert!(book.admit(&limits, 1, Instant::now()).is_err());
        tokio::time::advance(100 * MINUTE).await;
        let state = book.admit(&limits, 1, Instant::now()).unwrap();
        assert_eq!(header(&state, "x-ratelimit-remaining-requests"), "59", "no more than the limit");
        assert_eq!(header(&state, "x-ratelimit-reset-requests"), "1s");
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_taken_when_they_are_counted_and_may_be_overdrawn() {
        let (book, limits) = (QuotaBook::default(), limits(None, Some(600), None));
        let state = book.admit(&limits, 1, Instant::now()).unwrap();
        assert_eq!(header(&state, "x-ratelimit-remaining-tokens"), "600");
        assert!(state.get("x-ratelimit-limit-requests").is_none());
        book.end(&limits, 1, 700, Instant::now());
        let refused = book.admit(&limits, 1, Instant::now()).unwrap_err();
        // 101 tokens at 10 in a second.
        assert_eq!(refused.retry_after.as_millis(), 10_100);
        assert_eq!(header(&refused.headers, "x-ratelimit-remaining-tokens"), "0");
        assert_eq!(header(&refused.headers, "x-ratelimit-reset-tokens"), "1m10s");
        assert_eq!(refused.message, "Rate limit reached: 600 tokens in 1m0s. Please try again in 10.1s.");
        tokio::time::advance(refused.retry_after).await;
        assert!(book.admit(&limits, 1, Instant::now()).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_are_in_progress() {
        let (book, limits) = (QuotaBook::default(), limits(None, None, Some(2)));
        assert!(book.admit(&limits, 1, Instant::now()).is_ok());
        assert!(book.admit(&limits, 1, Instant::now()).is_ok());
        let refused = book.admit(&limits, 1, Instant::now()).unwrap_err();
        assert_eq!((refused.retry_after, refused.headers.len()), (WHILE_OTHERS_RUN, 0));
        book.end(&limits, 1, 5, Instant::now());
        assert!(book.admit(&limits, 1, Instant::now()).is_ok());
        assert!(book.admit(&limits, 1, Instant::now()).is_err());
    }
}
