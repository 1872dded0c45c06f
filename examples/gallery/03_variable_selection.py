"""Variable selection.

Which of 64 terms of scikit-learn's diabetes data matter for the progression of the disease, how much, and how surely?
The estimator returns inclusion probabilities and intervals; the lasso returns a list.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LassoCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from spikeslab.sklearn import SpikeSlabRegressor

# %%
# ## The table
#
# Ten measurements of 442 patients, their squares and products. Sex has two values, so its square says nothing new.
frame = load_diabetes(as_frame=True)
terms = PolynomialFeatures(2, include_bias=False).set_output(transform="pandas").fit_transform(frame.data)
X = terms.drop(columns="sex^2")
X_train, X_test, y_train, y_test = train_test_split(X, frame.target, test_size=0.25, random_state=0)
print(f"{len(X_train)} rows, {X.shape[1]} columns")

# %%
# ## Fit
#
# Columns are standardised inside. `pip_` is the posterior inclusion probability of a column.
model = SpikeSlabRegressor(random_state=0).fit(X_train, y_train)
summary = model.summary(level=0.9)
print(summary.head(8).round(2).to_string())

# %%
# ## Beside the lasso
#
# The lasso keeps four times as many columns and predicts the held-out patients slightly better: if only the prediction
# counts, use it.
lasso = make_pipeline(StandardScaler(), LassoCV(random_state=0)).fit(X_train, y_train)


def error(estimator: object) -> float:
    """Return the root mean squared error on the held-out rows."""
    return float(np.sqrt(np.mean((estimator.predict(X_test) - y_test) ** 2)))


rows = {
    "SpikeSlabRegressor": (model.get_support().sum(), error(model)),
    "LassoCV": ((lasso[-1].coef_ != 0).sum(), error(lasso)),
}
print(pd.DataFrame(rows, index=["columns", "RMSE"]).T.round(1).to_string())

# %%
# Inclusion probabilities of the first fifteen terms; the dashed line is the median model.
top = pd.Series(model.pip_, index=X.columns).nlargest(15)[::-1]
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.barh(top.index, top, color=["tab:blue" if value > 0.5 else "tab:gray" for value in top])
axes.axvline(0.5, color="black", linestyle="--", linewidth=0.8)
axes.set(xlabel="posterior inclusion probability", xlim=(0, 1))
plt.show()
