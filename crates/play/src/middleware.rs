//! Middleware as a tower layer: a look at a request, and one at the response to it.
//!
//! axum's `from_fn` boxes a future and clones the inner service into a box for each request and each layer. This has a
//! future of its own type and takes the inner service as it is.
//!
//! A [`Middleware`] awaits nothing; an [`Intercept`] does, and boxes the future of those requests that it takes.
//!
//! See docs/decisions/0037-middleware-without-boxes.md.

use std::{
    convert::Infallible,
    future::Future,
    ops::ControlFlow,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{extract::Request, response::Response};
use futures_util::future::{BoxFuture, Either};
use tower::{Layer, Service};

/// A look at requests and responses.
pub(super) trait Middleware {
    /// State that is kept of a request until it is answered.
    type Kept: Unpin;

    /// Looks at a request, or answers it.
    fn before(&self, request: &mut Request) -> ControlFlow<Response, Self::Kept>;

    /// Looks at the response to a request that was passed on; by default it stays as it is.
    fn after(_: Self::Kept, response: Response) -> Response {
        response
    }
}

/// The layer of a [`Middleware`].
#[derive(Debug, Clone)]
pub(super) struct Layered<M>(pub(super) M);

impl<M: Clone, S> Layer<S> for Layered<M> {
    type Service = LayeredService<M, S>;

    fn layer(&self, inner: S) -> LayeredService<M, S> {
        LayeredService { middleware: self.0.clone(), inner }
    }
}

/// A service behind a [`Middleware`].
#[derive(Debug, Clone)]
pub(super) struct LayeredService<M, S> {
    middleware: M,
    inner: S,
}

impl<M, S> Service<Request> for LayeredService<M, S>
where
    M: Middleware,
    S: Service<Request, Response = Response, Error = Infallible, Future: Unpin>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Answering<M, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        match self.middleware.before(&mut request) {
            ControlFlow::Continue(kept) => Answering::Passed { kept: Some(kept), response: self.inner.call(request) },
            ControlFlow::Break(response) => Answering::Answered(Some(response)),
        }
    }
}

/// The future response of a [`LayeredService`] service.
pub(super) enum Answering<M: Middleware, F> {
    /// The middleware answered; `None` once it is taken.
    Answered(Option<Response>),
    /// The inner service answers; nothing is kept any more once it has.
    Passed { kept: Option<M::Kept>, response: F },
}

impl<M, F> Future for Answering<M, F>
where
    M: Middleware,
    F: Future<Output = Result<Response, Infallible>> + Unpin,
{
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (kept, response) = match self.get_mut() {
            Self::Answered(response) => {
                return response.take().map_or(Poll::Pending, |response| Poll::Ready(Ok(response)));
            }
            Self::Passed { kept, response } => (kept, response),
        };
        let response = ready!(Pin::new(response).poll(context))?;
        Poll::Ready(Ok(match kept.take() {
            Some(kept) => M::after(kept, response),
            None => response,
        }))
    }
}

/// Something before a service that may answer in its place, or change what it answers.
pub(super) trait Intercept: Clone + Send + 'static {
    /// Checks whether a request is looked at; the others go to the service as they are.
    fn takes(&self, request: &Request) -> bool;

    /// Answers a request in the service's place, or gives it back, as all are by default.
    fn answer(self, request: Request) -> impl Future<Output = ControlFlow<Response, Request>> + Send {
        async { ControlFlow::Continue(request) }
    }

    /// Answers a request, with the service behind it or without.
    fn respond<S>(self, request: Request, inner: S) -> impl Future<Output = Response> + Send
    where
        S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Send,
    {
        async {
            match self.answer(request).await {
                ControlFlow::Break(response) => response,
                ControlFlow::Continue(request) => called(inner, request).await,
            }
        }
    }
}

/// Calls a service that does not fail.
pub(super) async fn called<S>(mut inner: S, request: Request) -> Response
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    inner.call(request).await.unwrap_or_else(|never| match never {})
}

/// The layer of an [`Intercept`].
#[derive(Debug, Clone)]
pub(super) struct InterceptLayer<I>(pub(super) I);

impl<I: Clone, S> Layer<S> for InterceptLayer<I> {
    type Service = Intercepting<I, S>;

    fn layer(&self, inner: S) -> Intercepting<I, S> {
        Intercepting { intercept: self.0.clone(), inner }
    }
}

/// A service behind an [`Intercept`].
#[derive(Debug, Clone)]
pub(super) struct Intercepting<I, S> {
    intercept: I,
    inner: S,
}

impl<I, S> Service<Request> for Intercepting<I, S>
where
    I: Intercept,
    S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        if !self.intercept.takes(&request) {
            return Either::Left(self.inner.call(request));
        }
        let (intercept, inner) = (self.intercept.clone(), self.inner.clone());
        Either::Right(Box::pin(async move { Ok(intercept.respond(request, inner).await) }))
    }
}
