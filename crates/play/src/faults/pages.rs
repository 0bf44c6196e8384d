//! Pages of metrics as faults have them: of earlier times, without a family, or with samples that are no numbers.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, MutexGuard, Weak},
    time::Duration,
};

use tokio::{
    select,
    sync::oneshot,
    time::{Instant, sleep},
};

use super::server::ServerFaults;
use ::faults::{ChosenFault, FaultKind, FaultSet, MetricsFault};
use base::{lock::Lock, stats::scraped};

/// Makes the page as it is now; `None` once its server is gone.
pub(crate) type PageSource = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Earlier pages that are kept at a time.
const KEPT: u32 = 64;

/// Shortest time between two of them.
const SHORTEST: Duration = Duration::from_millis(20);

/// Earlier pages of a server.
#[derive(Debug, Default)]
pub(crate) struct MetricsPages {
    kept: Lock<KeptPages>,
    /// Ends the sampling when this is dropped.
    _sampling: Option<oneshot::Sender<()>>,
}

#[derive(Debug, Default)]
struct KeptPages {
    /// The faults that they are kept for.
    set: Weak<FaultSet>,
    /// By the number of their fault.
    stuck: HashMap<Option<usize>, Arc<str>>,
    /// Numbers of the faults of families that the page does not have.
    warned: HashSet<Option<usize>>,
    /// The oldest first.
    earlier: VecDeque<(Instant, Arc<str>)>,
}

impl MetricsPages {
    /// Keeps pages as long as a fault wants earlier ones.
    pub(crate) fn sampled(faults: Arc<ServerFaults>, source: PageSource) -> Arc<Self> {
        let (sampling, gone) = oneshot::channel();
        let pages = Arc::new(Self { _sampling: Some(sampling), ..Self::default() });
        let sampled = Arc::downgrade(&pages);
        tokio::spawn(async move {
            select! {
                _ = gone => {}
                () = sample(sampled, faults, source) => {}
            }
        });
        pages
    }

    fn of(&self, set: &Arc<FaultSet>) -> MutexGuard<'_, KeptPages> {
        let mut kept = self.kept.lock();
        if kept.set.as_ptr() != Arc::as_ptr(set) {
            *kept = KeptPages { set: Arc::downgrade(set), ..KeptPages::default() };
        }
        kept
    }

    /// The page with its faults; `happened` is called with those that change it.
    pub(super) fn faulted(
        &self,
        set: &Arc<FaultSet>,
        chosen: &[ChosenFault],
        page: String,
        happened: impl Fn(&ChosenFault),
    ) -> String {
        let mut page = page;
        for it in chosen {
            let FaultKind::Metrics(fault) = &it.fault.kind else { continue };
            let other = match fault {
                MetricsFault::Stale(age) => {
                    self.of(set).earlier(*age).map_or_else(|| page.clone(), |page| page.to_string())
                }
                MetricsFault::Stuck => {
                    let mut kept = self.of(set);
                    kept.stuck.entry(it.rule).or_insert_with(|| page.as_str().into()).to_string()
                }
                MetricsFault::Nan(family) => scraped::with_values(&page, |sample| {
                    let is_meant = match family {
                        Some(family) => scraped::is_of_family(sample.name, family),
                        None => sample.name.starts_with("vllm:"),
                    };
                    is_meant.then_some(f64::NAN)
                }),
                MetricsFault::Absent(family) => scraped::without_family(&page, family),
            };
            // A page that stays may be equal to what it would be now.
            if other != page || matches!(fault, MetricsFault::Stale(_) | MetricsFault::Stuck) {
                happened(it);
            } else if let MetricsFault::Nan(Some(family)) | MetricsFault::Absent(family) = fault {
                let is_unknown = scraped::without_family(&page, family) == page;
                if is_unknown && self.of(set).warned.insert(it.rule) {
                    tracing::warn!("`{}` changes nothing: /metrics has no family `{family}`", it.fault);
                }
            }
            page = other;
        }
        page
    }
}

impl KeptPages {
    /// The latest page that is so old; the oldest one where none is.
    fn earlier(&self, age: Duration) -> Option<Arc<str>> {
        let old_enough = self.earlier.iter().rev().find(|(at, _)| at.elapsed() >= age);
        old_enough.or_else(|| self.earlier.front()).map(|(_, page)| Arc::clone(page))
    }

    fn add(&mut self, page: String, oldest: Duration) {
        self.earlier.push_back((Instant::now(), page.into()));
        // One that is older than all that are wanted stays, for the time until the next one is.
        while self.earlier.get(1).is_some_and(|(at, _)| at.elapsed() > oldest) {
            self.earlier.pop_front();
        }
    }
}

async fn sample(pages: Weak<MetricsPages>, faults: Arc<ServerFaults>, source: PageSource) {
    let mut changes = faults.changes();
    loop {
        changes.borrow_and_update();
        let set = faults.current();
        let oldest = set.oldest_page();
        if let Some(oldest) = oldest {
            let (Some(pages), Some(page)) = (pages.upgrade(), source()) else { return };
            pages.of(&set).add(page, oldest);
        }
        drop(set);
        let next = async {
            match oldest {
                Some(oldest) => sleep((oldest / KEPT).max(SHORTEST)).await,
                None => std::future::pending().await,
            }
        };
        select! {
            () = next => {}
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FaultLines;
    use ::faults::FaultRequest;

    fn chosen(set: &FaultSet) -> Vec<ChosenFault> {
        let headers = http::HeaderMap::new();
        set.choose(&FaultRequest { path: "/metrics", headers: &headers, body: b"", session: None, replica: 0 })
    }

    #[tokio::test(start_paused = true)]
    async fn a_stale_page_is_that_of_so_long_ago() {
        let lines = FaultLines { faults: vec!["metrics-stale:10s".parse().unwrap()], seed: 0 };
        let faults = Arc::new(ServerFaults::new(lines, false));
        let start = Instant::now();
        let source: PageSource = Arc::new(move || Some(format!("age {}\n", start.elapsed().as_secs_f64())));
        let pages = MetricsPages::sampled(Arc::clone(&faults), source);
        let ask = || {
            let set = faults.current();
            let page = pages.faulted(&set, &chosen(&set), "now\n".to_owned(), |it| drop(set.happened(it)));
            page.trim().strip_prefix("age ").and_then(|age| age.parse::<f64>().ok())
        };
        assert_eq!(ask(), None, "no page was kept yet");
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(ask(), Some(0.0), "the oldest one");
        tokio::time::sleep(Duration::from_secs(56)).await;
        let found = ask().unwrap();
        assert!((49.8..=50.0).contains(&found), "{found}");
        assert!(pages.of(&faults.current()).earlier.len() <= 66);
        assert_eq!(faults.current().hits(9).len(), 3);
        faults.replace(FaultLines::default());
        assert!(pages.of(&faults.current()).earlier.is_empty());
    }
}
