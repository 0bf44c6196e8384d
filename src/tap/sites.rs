//! The upstreams, and which of them gets a request.

use std::sync::Arc;

use http::Method;
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use super::{
    Asking, Route, Selector, Setup,
    body::{Relayed, Sent},
    learned::Learned,
};
use crate::upstream::{Upstream, UpstreamError};

/// How often, and how far apart, an upstream is asked for its version while it is not up yet.
const VERSION_TRIES: u32 = 300;
const VERSION_PAUSE: std::time::Duration = std::time::Duration::from_secs(2);

/// One upstream and what is known of it.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) upstream: Upstream<Sent>,
    pub(super) learned: Arc<Learned>,
    /// Its place among the sites.
    pub(super) place: usize,
    selector: Option<Selector>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Sites {
    main: Site,
    further: Vec<Site>,
    by_model: bool,
}

impl Sites {
    pub(super) fn new(setup: &Setup) -> Self {
        let main = Route { selector: None, upstream: setup.config.upstream.clone() };
        let site = |place: usize, route: &Route| Site {
            upstream: Upstream::new(route.upstream.clone(), &setup.reach),
            learned: Arc::new(match setup.asking {
                Asking::Allowed => Learned::default(),
                Asking::Never => Learned::left_alone(),
            }),
            place,
            selector: route.selector.clone(),
        };
        let further: Vec<Site> = (1..).zip(&setup.routes).map(|(place, route)| site(place, route)).collect();
        let by_model = further.iter().any(|site| matches!(site.selector, Some(Selector::Model(_))));
        Self { main: site(0, &main), further, by_model }
    }

    /// The same upstreams, with connections of their own; what is learnt of them is shared.
    pub(super) fn apart(&self) -> Self {
        let further = self.further.iter().map(Site::apart).collect();
        Self { main: self.main.apart(), further, by_model: self.by_model }
    }

    /// The one that gets every request that no other gets.
    pub(super) fn main(&self) -> &Site {
        &self.main
    }

    /// All, by place.
    pub(super) fn all(&self) -> impl Iterator<Item = &Site> {
        std::iter::once(&self.main).chain(&self.further)
    }

    /// Whether a request's model may decide.
    pub(super) fn are_by_model(&self) -> bool {
        self.by_model
    }

    /// The upstream of a path: the longest that fits.
    pub(super) fn of_path(&self, path: &str) -> Option<&Site> {
        self.longest(|selector| selector.takes_path(path))
    }

    /// The upstream of a request: by its path, else by its model, else the main one.
    pub(super) fn of(&self, path: &str, model: Option<&str>) -> &Site {
        self.of_path(path).or_else(|| self.longest(|selector| selector.takes_model(model?))).unwrap_or(&self.main)
    }

    fn longest(&self, takes: impl Fn(&Selector) -> Option<usize>) -> Option<&Site> {
        let fitting = self.further.iter().filter_map(|site| Some((takes(site.selector.as_ref()?)?, site)));
        fitting.max_by_key(|(length, _)| *length).map(|(_, site)| site)
    }
}

impl Site {
    fn apart(&self) -> Self {
        Self {
            upstream: self.upstream.apart(),
            learned: Arc::clone(&self.learned),
            place: self.place,
            selector: self.selector.clone(),
        }
    }

    /// Asks for the engine's version once, for a short time.
    pub(super) async fn ask_version(&self) {
        if let Ok(Ok(Some(version))) = timeout(VERSION_PAUSE, version_of(&self.upstream)).await {
            self.learned.set_version(version);
        }
    }

    /// Asks an upstream that is not up yet for its version in the background, until it answers.
    pub(super) fn learn_version(&self) {
        if self.learned.version().is_some() {
            return;
        }
        let (upstream, learned) = (self.upstream.clone(), Arc::clone(&self.learned));
        tokio::spawn(async move {
            for _ in 0..VERSION_TRIES {
                match version_of(&upstream).await {
                    Ok(Some(version)) => return learned.set_version(version),
                    Ok(None) => return,
                    Err(_) => sleep(VERSION_PAUSE).await,
                }
            }
        });
    }
}

/// The upstream's version; `None` when it answers but does not say.
async fn version_of(upstream: &Upstream<Sent>) -> Result<Option<String>, UpstreamError> {
    #[derive(Deserialize)]
    struct Version {
        version: String,
    }
    use http_body_util::BodyExt;
    let mut request = http::Request::new(Relayed::whole(bytes::Bytes::new()));
    *request.method_mut() = Method::GET;
    *request.uri_mut() = http::Uri::from_static("/version");
    let response = upstream.send(request).await?;
    let body = http_body_util::Limited::new(response.into_body(), 64 << 10).collect().await;
    let version = body.ok().and_then(|body| serde_json::from_slice::<Version>(&body.to_bytes()).ok());
    Ok(version.map(|version| version.version))
}
